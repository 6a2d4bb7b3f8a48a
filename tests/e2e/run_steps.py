"""A worker with the handlers of `steps_app`, in a process that a test kills."""

import sys

from hwqueue.worker import run
from tests.e2e.steps_app import app
from tests.e2e.worker_support import settings

if __name__ == "__main__":
    sys.exit(run(app, settings(sys.argv[1])))
