-- Sending goes by durable tasks (schema `messaging`). The task of a notification has the notification's id, and the
-- order as order key; the task, not this table, says what became of what is not sent.

-- A row without a task would never be sent. New versions write the task before the row; this is for instances of the
-- version before, which may go on recording while the new one is rolled out. To be dropped with the last of them.
create function notification_task() returns trigger
language plpgsql
as $$
begin
    insert into messaging.task (id, kind, key, payload, run_at, traceparent, tracestate)
    values (new.notification_id, 'notification.send', new.order_id::text, '{}', messaging.task_now(),
            new.traceparent, new.tracestate)
    on conflict on constraint task_pkey do nothing;
    return null;
end
$$;

comment on function notification_task() is 'Makes the task of a row that the version without tasks wrote.';

-- Waits for those who are writing and holds off the next ones until the migration commits: the statement below sees
-- every row that has no task.
create trigger notification_task after insert on notification
    for each row execute function notification_task();

-- What was recorded and not sent yet, in order. Instances of the version before may send some of it in the meantime; its
-- task then finds it sent.
insert into messaging.task (id, kind, key, payload, run_at, traceparent, tracestate, last_error)
select notification_id, 'notification.send', order_id::text, '{}', messaging.task_now(), traceparent, tracestate,
       last_error
from (select * from notification where sent_at is null order by seq) unsent;

comment on column notification.attempts is
    'Tries, the successful one included; written when it was sent. Until then the task counts.';
comment on column notification.due_at is 'Not read any more; the version before needs it.';
comment on column notification.last_error is 'Not written any more; the task has it.';
