"""The book: its site (`make site`), its measure of plain English, and its generated reference pages."""
