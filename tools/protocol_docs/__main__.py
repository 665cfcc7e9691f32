"""Write the tables into docs/protocol.md: `python -m tools.protocol_docs`."""

from tools.protocol_docs.page import PAGE, filled

PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
