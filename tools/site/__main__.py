"""`python -m tools.site`: the sizes of the pages and how plain their English is; `--sample N` prints N sentences."""

import random
import sys
from statistics import mean

from tools.site.sentences import LONGEST, ROOT, Sentence, pages, riddles, sentences


def main(arguments: list[str]) -> None:
    """Print a line a page, then the sums; or a sample, drawn by a fixed seed."""
    found = {page: sentences(page) for page in pages()}
    everything = [each for of_page in found.values() for each in of_page]
    if arguments[:1] == ["--sample"]:
        for each in random.Random(1).sample([each for each in everything if each.words > 3], int(arguments[1])):
            print(f"{each.page.relative_to(ROOT)}: {each.text}")
        return
    if arguments[:1] == ["--long"]:
        for each in everything:
            if each.words > LONGEST or riddles(each.text):
                print(f"{each.page.relative_to(ROOT)}: {each.words}: {each.text}")
        return
    print(f"{'page':44} {'bytes':>8} {'words':>6} {'long':>5} {'riddles':>8}")
    for page, of_page in found.items():
        print(f"{page.relative_to(ROOT)!s:44} {page.stat().st_size:8,} {_figures(of_page)}")
    total = sum(page.stat().st_size for page in found)
    print(f"{'all':44} {total:8,} {_figures(everything)}")


def _figures(of_page: list[Sentence]) -> str:
    # Headings and cells of a word or two would hide long sentences.
    lengths = [each.words for each in of_page if each.words > 3]
    long = sum(length > LONGEST for length in lengths)
    return f"{mean(lengths or [0]):6.1f} {long:5} {sum(len(riddles(each.text)) for each in of_page):8}"


main(sys.argv[1:])
