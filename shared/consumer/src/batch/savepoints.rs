//! Messages in groups behind savepoints: a failure undoes its group and no more.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::{
    Runner,
    parking::Parking,
    verdict::{Chunk, Fate},
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

impl Runner {
    /// A savepoint costs a round trip, so a group of messages shares one. When one of a group fails, the group is
    /// undone and run again without it, and without those that must not pass it.
    pub(super) async fn each<W: Work>(
        &self,
        tx: &mut PgConnection,
        line: &Line,
        work: &W,
        parking: &mut Parking<'_, W::Event>,
    ) -> Result<Chunk, Stop> {
        let (mut chunk, count) = (Chunk::default(), parking.messages.len());
        if count == 0 {
            return Ok(chunk);
        }
        store::savepoint(tx).await.map_err(Stop::runtime)?;
        let (mut width, mut savepoints) = (GROUP, 1);
        while chunk.fates.len() < count && savepoints < SAVEPOINTS {
            let at = chunk.fates.len();
            let mut group = at..(at + width).min(count);
            width = GROUP;
            let mut failed: BTreeMap<usize, Fate> = BTreeMap::new();
            loop {
                savepoints += 1;
                let here = group.clone().filter(|index| !parking.waits(*index, &failed));
                let here = here.map(|index| (index, &parking.messages[index]));
                match self.group(tx, work, here).await? {
                    Ran::Kept => break,
                    Ran::Failed(index, failure) => match line.rule(&parking.messages[index], failure) {
                        Ok(fate) => drop(failed.insert(index, fate)),
                        // Nothing behind it in the partition is handled first.
                        Err(failure) => {
                            group.end = index;
                            failed.split_off(&index);
                            chunk.blocked = Some(failure);
                        }
                    },
                    // One by one, then.
                    Ran::Swallowed => {
                        (width, group.end) = (1, at);
                        failed.clear();
                        chunk.blocked = None;
                        break;
                    }
                }
            }
            chunk.fates.extend(group.clone().map(|index| failed.remove(&index).unwrap_or(Fate::Done)));
            parking.park(&mut chunk.fates, group);
            if chunk.blocked.is_some() {
                break;
            }
        }
        Ok(chunk)
    }

    /// Runs a group and keeps its writes, or undoes them all.
    async fn group<'m, W: Work>(
        &self,
        tx: &mut PgConnection,
        work: &W,
        messages: impl Iterator<Item = (usize, &'m Message<W::Event>)> + Send,
    ) -> Result<Ran, Stop> {
        let mut ran = Vec::with_capacity(GROUP);
        let mut failed = None;
        for (index, message) in messages {
            ran.push(index);
            match work.one(tx, message, self.around()).await {
                Ok(()) => {}
                Err(Stumble::Failed(failure)) if failure.failure.lost_connection() => {
                    return Err(Stop::Runtime(failure.failure.into_error()));
                }
                Err(Stumble::Failed(failure)) if !failure.failure.names_no_message() => {
                    failed = Some(Ran::Failed(index, failure));
                    break;
                }
                Err(stumble) => return Err(Stop::Nameless(stumble)),
            }
        }
        let failed = match failed {
            Some(failed) => failed,
            // Fails where a handler swallowed an error, so that no message is taken for done.
            None => match store::next_savepoint(tx).await {
                Ok(()) => return Ok(Ran::Kept),
                Err(error) if is_connection_lost(&error) => return Err(Stop::runtime(error)),
                Err(error) => match ran[..] {
                    [only] => Ran::Failed(only, Failed::new(error.into())),
                    _ => Ran::Swallowed,
                },
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

/// Why the loop over the messages ended early.
pub(super) enum Stop {
    Runtime(anyhow::Error),
    Nameless(Stumble),
}

impl Stop {
    fn runtime(error: sqlx::Error) -> Self {
        Self::Runtime(error.into())
    }
}
