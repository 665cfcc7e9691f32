"""Write the definitions' words into the pages of the reference and the client's source: `python -m tools.reference`."""

from tools.reference.client_texts import OPTIONS, rewritten
from tools.reference.pages import FOLDER, PAGES, filled

for page in PAGES:
    (FOLDER / page).write_text(filled(page), encoding="utf-8")
OPTIONS.write_text(rewritten(OPTIONS.read_text(encoding="utf-8")), encoding="utf-8")
