-- What is installed: no row when nothing is.
select revision, bundle_sha256, package_version, roles_installed, applied_at
from hwqueue.schema_info
