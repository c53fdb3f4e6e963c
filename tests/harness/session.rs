//! Calls that run on a connection of their own while the test goes on.

use crate::{wait_until, Calls};
use postgres::Client;
use std::sync::Barrier;
use std::thread::{self, JoinHandle};

/// The SQLSTATE of an error; empty for one that did not come from the server.
pub fn sqlstate(error: &postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

/// Work on a connection in a thread of its own.
pub struct Background<T> {
    pid: i32,
    thread: JoinHandle<(T, Client)>,
}

impl<T: Send + 'static> Background<T> {
    pub fn run(mut client: Client, work: impl FnOnce(&mut Client) -> T + Send + 'static) -> Self {
        let pid = client.value("SELECT pg_backend_pid()");
        let thread = thread::spawn(move || {
            let answer = work(&mut client);
            (answer, client)
        });
        Background { pid, thread }
    }

    /// The process id of its backend.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until its backend waits for an event of this type: `Lock`, or `Extension` for a waiting claim.
    pub fn until_waiting_for(&self, event_type: &str, observer: &mut Client) {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = $2";
        wait_until(&format!("a backend to wait for {event_type}"), || {
            assert!(!self.is_finished(), "it has returned instead of waiting for {event_type}");
            observer.query_one(sql, &[&self.pid, &event_type]).expect("pg_stat_activity").get::<_, i64>(0) == 1
        });
    }

    /// What it returned, and its connection.
    pub fn join(self) -> (T, Client) {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Runs the work on every connection at the same moment, each in a thread of its own, and returns what each returned.
pub fn at_once<T: Send>(clients: &mut [Client], work: impl Fn(usize, &mut Client) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(clients.len());
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(n, client)| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    work(n, client)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
