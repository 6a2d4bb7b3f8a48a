"""The benchmarks: that they run, and that what they build on is what it says."""
