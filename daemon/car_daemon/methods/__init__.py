"""The methods of the protocol, one file a family, and the objects that they report."""
