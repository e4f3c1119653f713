"""Local folders and object stores behind one interface."""
