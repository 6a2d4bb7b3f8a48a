select to_regclass('hwqueue.schema_info') is not null
