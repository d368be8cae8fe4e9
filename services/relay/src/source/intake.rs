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
    // read the bucket from its start instead.
    let late = listed.behind.iter().filter(|seq| !window.knows(**seq)).count();
    if late > 0 {
        cursors.rewind(page.bucket);
        catch.late += late;
        catch.more = true;
        return;
    }
    let full = listed.is_full(page);
    let (mut last, mut blocked) = (listed.passed, false);
    for (row, behind_dead) in listed.rows {
        let id = row.id;
        last = last.max(Some(id.seq));
        if behind_dead {
            catch.behind_dead.push(id);
            blocked = true;
            continue;
        }
        match window.take(row) {
            Taken::New => catch.rows += 1,
            Taken::Known => {}
            Taken::Blocked => blocked = true,
        }
    }
    cursors.advance(page, last, full, most);
    if blocked {
        // The cursor does not pass rows that are not in memory.
        cursors.rewind(page.bucket);
    }
    catch.more |= full || blocked;
}
