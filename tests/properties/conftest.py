"""Loads the hypothesis profile before any property test is built."""

from tests.properties.profiles import load_profile

load_profile()
