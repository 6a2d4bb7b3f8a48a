select pg_catalog.to_regclass('hwqueue.schema_info') is not null
