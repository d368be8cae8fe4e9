//! Handlers of any type behind one.

use std::fmt;

use futures::future::{BoxFuture, FutureExt};

use crate::{Guard, Handler, Running, Stop};

pub(super) trait Erased: Send + Sync {
    fn run<'a>(&'a self, task: &'a Running, guard: &'a Guard) -> BoxFuture<'a, Result<(), Stop>>;
}

impl<H: Handler> Erased for H {
    fn run<'a>(&'a self, task: &'a Running, guard: &'a Guard) -> BoxFuture<'a, Result<(), Stop>> {
        Handler::run(self, task, guard).boxed()
    }
}

impl fmt::Debug for dyn Erased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
