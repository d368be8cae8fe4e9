//! Message by message: all at once, or in groups behind savepoints, where a failure undoes its group and no more.

use std::{collections::BTreeMap, ops::Range};

use sqlx::PgConnection;

use super::{
    Runner,
    parking::Parking,
    verdict::{Chunk, Fate, Stop},
};
use crate::{
    Message,
    failure::is_connection_lost,
    line::Line,
    store,
    work::{Failed, Stumble, Work},
};

/// More than 64 subtransactions overflow the server's cache of them, and every reader pays.
const SAVEPOINTS: usize = 50;
/// Messages that share a savepoint. At 1 % failing messages the savepoints then cost as much as what is run again.
const GROUP: usize = 12;

/// Some messages in a row, and those of them that have failed.
struct Group {
    range: Range<usize>,
    failed: BTreeMap<usize, Fate>,
    /// The failure of the message behind the range.
    blocked: Option<Failed>,
}

impl Group {
    fn new(range: Range<usize>) -> Self {
        Self { range, failed: BTreeMap::new(), blocked: None }
    }

    /// What becomes of a message that has failed. When it is held, which is returned, nothing behind it in the partition
    /// is handled first.
    fn rule<E>(&mut self, line: &Line, message: &Message<E>, index: usize, failed: Failed) -> bool {
        match line.rule(message, failed) {
            Ok(fate) => {
                self.failed.insert(index, fate);
                false
            }
            Err(failed) => {
                self.range.end = index;
                self.failed.split_off(&index);
                self.blocked = Some(failed);
                true
            }
        }
    }
}

impl Runner {
    /// Message by message. A message that fails before its handler has used the transaction is left out, and that is all.
    /// For one that fails later its writes must be undone, and those of some others with them: `guarded`, a group of
    /// messages shares a savepoint, which costs a round trip, and is run again without the failed one and without those
    /// that must not pass it; otherwise all stops.
    pub(super) async fn each<W: Work>(
        &self,
        tx: &mut PgConnection,
        line: &Line,
        work: &W,
        parking: &mut Parking<'_, W::Event>,
        guarded: bool,
    ) -> Result<Chunk, Stop> {
        let (mut chunk, count) = (Chunk::default(), parking.messages.len());
        if count == 0 {
            return Ok(chunk);
        }
        if guarded {
            store::savepoint(tx).await.map_err(Stop::runtime)?;
        }
        let usual = if guarded { GROUP } else { count };
        let (mut width, mut savepoints) = (usual, 1);
        while chunk.fates.len() < count && savepoints < SAVEPOINTS {
            let at = chunk.fates.len();
            let mut group = Group::new(at..(at + width).min(count));
            width = usual;
            loop {
                savepoints += 1;
                let ran = self.group(tx, line, work, parking, &mut group, guarded).await?;
                chunk.undone |= !matches!(ran, Ran::Kept);
                match ran {
                    Ran::Kept => break,
                    Ran::Failed(index, failed) => {
                        group.rule(line, &parking.messages[index], index, failed);
                    }
                    // One by one, then.
                    Ran::Swallowed => {
                        (width, group) = (1, Group::new(at..at));
                        break;
                    }
                }
            }
            let Group { range, mut failed, blocked } = group;
            chunk.fates.extend(range.clone().map(|index| failed.remove(&index).unwrap_or(Fate::Done)));
            parking.park(&mut chunk.fates, range);
            chunk.blocked = blocked;
            if chunk.blocked.is_some() {
                break;
            }
        }
        Ok(chunk)
    }

    /// Runs what of a group is to be run, and keeps its writes, or undoes them all.
    async fn group<W: Work>(
        &self,
        tx: &mut PgConnection,
        line: &Line,
        work: &W,
        parking: &Parking<'_, W::Event>,
        group: &mut Group,
        guarded: bool,
    ) -> Result<Ran, Stop> {
        let (mut done, mut last, mut dirty) = (0, group.range.start, None);
        for index in group.range.clone() {
            if parking.waits(index, &group.failed) {
                continue;
            }
            let message = &parking.messages[index];
            match work.one(tx, message, self.around()).await {
                Ok(()) => (done, last) = (done + 1, index),
                Err(Stumble::Failed(failed)) if failed.clean => {
                    // Not by `blocked`, which may be of an earlier run: whatever is still in the range is handled.
                    if group.rule(line, message, index, failed) {
                        break;
                    }
                }
                Err(Stumble::Failed(failed)) if failed.failure.lost_connection() => {
                    return Err(Stop::Runtime(failed.failure.into_error()));
                }
                Err(Stumble::Failed(failed)) if !guarded => return Err(Stop::Unguarded(failed)),
                Err(Stumble::Failed(failed)) if !failed.failure.names_no_message() => {
                    dirty = Some(Ran::Failed(index, failed));
                    break;
                }
                Err(stumble) => return Err(Stop::Nameless(stumble)),
            }
        }
        let failed = match dirty {
            Some(failed) => failed,
            None if !guarded => return Ok(Ran::Kept),
            // Fails where a handler swallowed an error, so that no message is taken for done.
            None => match store::next_savepoint(tx).await {
                Ok(()) => return Ok(Ran::Kept),
                Err(error) if is_connection_lost(&error) => return Err(Stop::runtime(error)),
                Err(error) if done == 1 => Ran::Failed(last, Failed::new(error.into())),
                Err(_) => Ran::Swallowed,
            },
        };
        store::undo(tx).await.map_err(Stop::runtime)?;
        Ok(failed)
    }
}

/// How a group of messages ended.
enum Ran {
    /// Its writes are kept.
    Kept,
    /// All is undone, for this message's failure.
    Failed(usize, Failed),
    /// All is undone. One of several failed, and its handler hid the error, so that it cannot be told which.
    Swallowed,
}
