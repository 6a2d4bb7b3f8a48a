-- they have another argument or another result
drop function if exists hwqueue.item_results(uuid, int, int, int, int);
drop function if exists hwqueue.step_results(uuid, text, int, int, uuid, int);
drop function if exists hwqueue.step_content(hwqueue.run, jsonb, jsonb, hwqueue.spawn_target);
