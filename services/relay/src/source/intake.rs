//! What is done with the rows of a fetch. No I/O.

use super::cursor::{Cursors, Page};
use super::row::RowId;
use super::store::Listed;
use super::window::{Taken, Window};

/// What a fetch brought.
#[derive(Debug, Default)]
pub(crate) struct Catch {
    /// New rows.
    pub(crate) rows: usize,
    /// More may be there: the next fetch need not wait.
    pub(crate) more: bool,
    /// Rows found behind a cursor.
    pub(crate) late: usize,
    /// Rows of blocked keys.
    pub(crate) behind_dead: Vec<RowId>,
}

/// Takes one page into the window. `most` is the largest page.
pub(crate) fn take(
    window: &mut Window,
    cursors: &mut Cursors,
    page: &Page,
    listed: Listed,
    most: i64,
    catch: &mut Catch,
) {
    if !cursors.is_current(page) {
        catch.more = true;
        return;
    }
    if listed.era.is_some_and(|era| page.era != Some(era) && !cursors.enter(page, era)) {
        catch.more = true;
        return;
    }
    // Rule: rows above a cursor may be used only when this very snapshot shows nothing unknown behind it. A row
    // found there committed late (or was let go by an operator), and a later row of its key may be in this page:
    // read the bucket from there instead.
    let late = listed.behind.iter().filter(|seq| !window.knows(page.bucket, **seq));
    if let Some(lowest) = late.clone().min() {
        cursors.back_to(page.bucket, *lowest);
        catch.late += late.count();
        catch.more = true;
        return;
    }
    let (mut full, mut room) = (listed.is_full(page), page.room);
    let (mut last, mut blocked) = (listed.passed, None);
    for (row, behind_dead) in listed.rows {
        if room == 0 {
            // Rows of the page that were in memory when the fetch began are marked by now: others came in their
            // place.
            (full, last) = (true, last.min(Some(row.id.seq - 1)));
            break;
        }
        let id = row.id;
        last = last.max(Some(id.seq));
        if behind_dead {
            catch.behind_dead.push(id);
            blocked = blocked.or(Some(id.seq));
            continue;
        }
        match window.take(row) {
            Taken::New => (catch.rows, room) = (catch.rows + 1, room - 1),
            Taken::Known => {}
            Taken::Blocked => blocked = blocked.or(Some(id.seq)),
        }
    }
    cursors.advance(page, last, full, most);
    if let Some(lowest) = blocked {
        // The cursor does not pass rows that are not in memory.
        cursors.back_to(page.bucket, lowest);
    }
    catch.more |= full || blocked.is_some();
}
