drop schema hwqueue cascade
