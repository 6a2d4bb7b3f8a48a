"""The program of the project, in the root of the checkout: python -m tests.django_shop.manage."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_shop.settings")
    execute_from_command_line(sys.argv)
