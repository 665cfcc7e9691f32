"""Write the definitions' words into the protocol's page and the client's source: `python -m tools.protocol_docs`."""

from tools.protocol_docs.client_texts import OPTIONS, rewritten
from tools.protocol_docs.page import PAGE, filled

PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
OPTIONS.write_text(rewritten(OPTIONS.read_text(encoding="utf-8")), encoding="utf-8")
