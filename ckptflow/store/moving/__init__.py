"""A whole run on its way: out of a store, into another one or into one file, and back."""
