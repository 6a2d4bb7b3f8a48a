"""What the benchmarks share; nothing here asks a question of its own."""
