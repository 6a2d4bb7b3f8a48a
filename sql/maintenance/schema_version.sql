-- What is installed: workers and the command line refuse a schema that is older or newer than they can serve.
create or replace function hwqueue.schema_version() returns table (revision text, bundle_sha256 text, package_version text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select i.revision, i.bundle_sha256, i.package_version from hwqueue.schema_info i $$;
