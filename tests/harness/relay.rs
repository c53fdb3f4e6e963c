//! A TCP relay between a client and the server that can lose the connection at a chosen moment.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

/// Relays connections to a server until told to swallow what the server answers.
pub struct Relay {
    port: u16,
    deaf: Arc<AtomicBool>,
}

impl Relay {
    /// Listens on a free port of 127.0.0.1 and relays to `port` there.
    pub fn to(port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own_port = listener.local_addr().expect("its address").port();
        let deaf = Arc::new(AtomicBool::new(false));
        let deaf_too = deaf.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
                let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pump(from_client, to_server, None));
                let deaf = deaf_too.clone();
                thread::spawn(move || pump(server, client, Some(&deaf)));
            }
        });
        Relay { port: own_port, deaf }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The client must have read all earlier answers: a round trip without a statement (`simple_query("")`) sees to it.
    ///
    /// From now on the next answer of the server is lost, and the connection to the client with it. What the client
    /// sends still arrives.
    pub fn lose_answers(&self) {
        self.deaf.store(true, Ordering::SeqCst);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, deaf: Option<&AtomicBool>) {
    let mut buffer = [0; 65536];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if deaf.is_some_and(|d| d.load(Ordering::SeqCst)) || to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
