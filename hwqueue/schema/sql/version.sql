-- What is installed, for every role that may use the queue.
select revision, bundle_sha256, package_version
from hwqueue.schema_version()
