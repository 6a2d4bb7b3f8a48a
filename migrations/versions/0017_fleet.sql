-- gives groups of nodes now, with other columns
drop function if exists hwqueue.fleet_failures(hwqueue.placement_class, jsonb, timestamptz, int);
