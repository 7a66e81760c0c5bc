"""What it takes to say that a copy is sound: its packs, and the roots of its regions."""
