"""The commands that the trial of a release types."""

from tools.try_release import readme_commands


def test_the_commands_are_those_of_the_readme_with_the_file_that_is_tried() -> None:
    install, *others = readme_commands("card_daemon-9.9.tar.gz")
    assert install == "pip install 'card_daemon-9.9.tar.gz[daemon,terminal,hub]'"
    assert [line.partition("  ")[0] for line in others] == [
        "card --check",
        "carctl up",
        'carctl infer "What is card?"',
    ]
