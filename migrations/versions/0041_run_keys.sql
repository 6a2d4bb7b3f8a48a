-- == The key of a run ==

drop function if exists hwqueue.get_workflow_run(uuid, int);  -- it has another column
