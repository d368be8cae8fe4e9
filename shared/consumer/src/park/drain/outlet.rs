//! Not to wait for a broker with every hand that is there.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;

/// A topic that heads are published to. While it refuses, one of them at a time tries it: what needs no broker goes on
/// meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Outlet {
    refuses: AtomicBool,
    trial: Mutex<()>,
}

impl Outlet {
    /// # Errors
    /// It refuses; also where another one is just trying it.
    pub(super) async fn publish(
        &self,
        publish: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let _alone = match self.refuses.load(Ordering::Relaxed) {
            true => {
                Some(self.trial.try_lock().map_err(|_| anyhow::anyhow!("refused, and tried by another"))?)
            }
            false => None,
        };
        let published = publish.await;
        self.refuses.store(published.is_err(), Ordering::Relaxed);
        published
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_topic_that_refuses_is_tried_by_one_and_a_good_one_by_all() {
        let (outlet, gate) = (Arc::new(Outlet::default()), Arc::new(Semaphore::new(0)));
        let publish = |fails: bool| {
            let (outlet, gate) = (Arc::clone(&outlet), Arc::clone(&gate));
            tokio::spawn(async move {
                let under_way = async {
                    gate.acquire().await.unwrap().forget();
                    if fails { Err(anyhow::anyhow!("away")) } else { Ok(()) }
                };
                outlet.publish(under_way).await.map_err(|error| error.to_string())
            })
        };
        let all: Vec<_> = (0..4).map(|_| publish(true)).collect();
        gate.add_permits(4);
        for one in all {
            assert_eq!(one.await.unwrap().unwrap_err(), "away");
        }
        let trial = publish(false);
        while outlet.trial.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(publish(false).await.unwrap().unwrap_err(), "refused, and tried by another");
        gate.add_permits(1);
        trial.await.unwrap().unwrap();
        let all: Vec<_> = (0..4).map(|_| publish(false)).collect();
        gate.add_permits(4);
        for one in all {
            one.await.unwrap().unwrap();
        }
    }
}
