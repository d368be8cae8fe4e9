//! Conservation: where each message of each group is. Pure, so that it can be tried on planted faults.

use std::collections::{HashMap, HashSet};
use std::fmt;

use chrono::TimeDelta;
use uuid::Uuid;
use waybill_event::outcome::kind;
use waybill_testkit::topics::Record;

use super::order;
use super::world::{Group, Where, World, id, replay_id};

/// Headers of Waybill's own.
const OWN: &str = "waybill-";

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is broken.
    pub rule: &'static str,
    /// Group.
    pub group: String,
    /// Message.
    pub id: Uuid,
    /// What is seen.
    pub seen: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {} {}", self.rule, self.group, self.id, self.seen)
    }
}

/// How many messages of a group are where: each is counted once, in the first class that fits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Group.
    pub group: String,
    /// One effect.
    pub done: usize,
    /// Of these by a replay.
    pub replayed: usize,
    /// Row `dead` and a record on the dead-letter topic.
    pub dead: usize,
    /// In the park.
    pub parked: usize,
    /// On a retry topic.
    pub retry: usize,
    /// On the replay topic.
    pub replay: usize,
    /// Not read yet.
    pub source: usize,
    /// Effects beside a replay of their key, of which one did not see the other. Of the others, not a class.
    pub beside: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} done ({} by replay), {} dead, {} parked, {} on retry topics, {} on the replay topic, {} unread",
            self.group,
            self.done,
            self.replayed,
            self.dead,
            self.parked,
            self.retry,
            self.replay,
            self.source
        )
    }
}

/// What a look at the world gives.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Per group.
    pub counts: Vec<Counts>,
    /// Nothing, when all is well.
    pub findings: Vec<Finding>,
}

/// One group as it is judged.
pub(crate) struct Case<'w> {
    pub(crate) group: &'w Group,
    /// The first copy of each message, with its place among all.
    pub(crate) originals: &'w HashMap<Uuid, (usize, &'w Record)>,
    /// All copies that were produced; those of a message without a key may lie in several partitions.
    pub(crate) produced: &'w HashMap<Uuid, Vec<&'w Record>>,
    pub(crate) findings: Vec<Finding>,
}

/// Looks at everything. With `drained` nothing may be on its way, and every replay must have its answer.
pub(crate) fn judge(world: &World, drained: bool) -> Verdict {
    let (mut originals, mut produced) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
    for (place, record) in world.source.iter().enumerate() {
        originals.entry(id(record)).or_insert((place, record));
        produced.entry(id(record)).or_default().push(record);
    }
    let mut verdict = Verdict::default();
    for group in &world.groups {
        let mut case = Case { group, originals: &originals, produced: &produced, findings: Vec::new() };
        let mut counts = case.places(drained);
        case.copies();
        case.answers(drained);
        if group.strict {
            counts.beside = order::check(&mut case);
        }
        verdict.counts.push(counts);
        verdict.findings.append(&mut case.findings);
    }
    verdict
}

impl Case<'_> {
    pub(crate) fn find(&mut self, rule: &'static str, id: Uuid, seen: impl Into<String>) {
        let group = self.group.name.clone();
        self.findings.push(Finding { rule, group, id, seen: seen.into() });
    }

    /// Never two effects; an effect exactly where the row says so; and no message nowhere.
    fn places(&mut self, drained: bool) -> Counts {
        let group = self.group;
        let mut counts = Counts { group: group.name.clone(), ..Counts::default() };
        let mut effects: HashMap<Uuid, usize> = HashMap::new();
        for effect in &group.effects {
            *effects.entry(effect.message_id).or_default() += 1;
        }
        let buried: HashSet<Uuid> = group.dead_letters.iter().map(id).collect();
        let parked: HashSet<Uuid> = group.parked.iter().map(|parked| parked.message_id).collect();
        for effect in &group.effects {
            // The machine has one clock, but timers have a grain.
            if effect.due_at.is_some_and(|due| due > effect.handled_at + TimeDelta::milliseconds(5)) {
                self.find("before it was due", effect.message_id, format!("{effect:?}"));
            }
        }
        for (id, (place, _)) in self.originals {
            let (id, times) = (*id, effects.remove(id).unwrap_or(0));
            let row = group.inbox.get(&id);
            let done = row.is_some_and(|row| row.done);
            let dead = row.is_some_and(|row| !row.done);
            let waits = group.pending.get(&id).map_or(&[][..], Vec::as_slice);
            let seen = || {
                format!(
                    "at {place}: {times} effects, {row:?}, dead letter {}, waits {waits:?}",
                    buried.contains(&id)
                )
            };
            if times > 1 {
                self.find("two effects", id, seen());
            }
            if done != (times > 0) {
                self.find("effect and row differ", id, seen());
            }
            if dead && !buried.contains(&id) {
                self.find("dead without a dead letter", id, seen());
            }
            let on_its_way = parked.contains(&id) || !waits.is_empty();
            match (done || times > 0, dead) {
                (true, _) => {
                    counts.done += 1;
                    counts.replayed += usize::from(row.is_some_and(|row| row.replay.is_some()));
                }
                (_, true) => counts.dead += 1,
                _ if parked.contains(&id) => counts.parked += 1,
                _ if waits.contains(&Where::Retry) => counts.retry += 1,
                _ if waits.contains(&Where::Replay) => counts.replay += 1,
                _ if waits.contains(&Where::Source) => counts.source += 1,
                _ => self.find("lost", id, seen()),
            }
            if drained && on_its_way {
                self.find("left on its way", id, seen());
            }
        }
        for id in effects.into_keys() {
            self.find("effect of nothing", id, "");
        }
        counts
    }

    /// Every copy is what was produced.
    fn copies(&mut self) {
        let group = self.group;
        for (rule, records) in [
            ("altered dead letter", &group.dead_letters),
            ("altered retry", &group.retries),
            ("altered replay", &group.replays),
        ] {
            for record in records {
                let same = |original: &&Record| {
                    record.key == original.key
                        && record.value == original.value
                        && record.partition == original.partition
                        && foreign(record).eq(foreign(original))
                };
                let produced = self.produced.get(&id(record)).map_or(&[][..], Vec::as_slice);
                if !produced.iter().any(same) {
                    self.find(rule, id(record), format!("{record:?} of {produced:?}"));
                }
                let mut own = HashSet::new();
                let repeated =
                    record.headers.iter().find(|(name, _)| name.starts_with(OWN) && !own.insert(name));
                if let Some((name, _)) = repeated {
                    self.find("header repeated", id(record), name);
                }
            }
        }
    }

    /// What a replay is told to have done is what the table says, and each replay is answered.
    fn answers(&mut self, drained: bool) {
        let group = self.group;
        let mut answered: HashSet<(Uuid, Uuid)> = HashSet::new();
        for told in &group.outcomes {
            answered.insert((told.message_id, told.replay_id));
            let row = group.inbox.get(&told.message_id);
            let right = match told.outcome.as_str() {
                kind::RESOLVED => row.is_some_and(|row| row.done && row.replay == Some(told.replay_id)),
                _ => row.is_some_and(|row| row.done && row.replay != Some(told.replay_id)),
            };
            if !right {
                self.find(
                    "wrong outcome",
                    told.message_id,
                    format!("{} by {}: {row:?}", told.outcome, told.replay_id),
                );
            }
        }
        if !drained {
            return;
        }
        let failed = group.dead_letters.iter().filter_map(|record| Some((id(record), replay_id(record)?)));
        answered.extend(failed);
        for record in &group.replays {
            let replay = (id(record), replay_id(record).unwrap_or_default());
            if !answered.contains(&replay) {
                self.find("unanswered replay", replay.0, format!("by {}", replay.1));
            }
        }
        for (message, row) in &group.inbox {
            if let Some(replay) = row.replay
                && !answered.contains(&(*message, replay))
            {
                self.find("resolved and not told", *message, format!("by {replay}"));
            }
        }
    }
}

/// Headers that are not Waybill's own, in their order.
fn foreign(record: &Record) -> impl Iterator<Item = &(String, Option<Vec<u8>>)> {
    record.headers.iter().filter(|(name, _)| !name.starts_with(OWN))
}
