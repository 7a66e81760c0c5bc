"""Test kit for those who extend ckptflow: a conformance suite and tiers that fail on purpose.

Production code may not import it; the import contracts see to that.
"""
