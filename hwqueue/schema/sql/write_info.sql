-- Note what an upgrade did.
insert into hwqueue.schema_info (revision, bundle_sha256, package_version, roles_installed)
values ({revision}, {bundle_sha256}, {package_version}, {roles_installed})
on conflict (singleton) do update set
  revision = excluded.revision,
  bundle_sha256 = excluded.bundle_sha256,
  package_version = excluded.package_version,
  roles_installed = excluded.roles_installed,
  applied_at = now();
