//! Answers clients, each on a thread of its own.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{ANSWER_MAX, REQUEST_MAX, Refusal, SILENCE};

/// Most connections at a time that have sent no request yet; one more closes the oldest.
const SILENT_MAX: usize = 8;
/// Most requests that are answered at a time; more are refused.
const REQUESTS_MAX: usize = 32;
/// Pause after a failed accept, for example when file descriptors run out.
const RETRY: Duration = Duration::from_millis(100);

/// Callback that tells the client what is being done.
///
/// # Errors
/// If the client is gone.
pub(crate) type Say<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

/// Handler of requests.
pub(crate) trait Service: Send + Sync + 'static {
    /// Carries out `request`. Until that is done, it has to call `say` every [`WORD_EVERY`](super::WORD_EVERY).
    ///
    /// # Errors
    /// [`Refusal`].
    fn answer(&self, request: &str, say: Say<'_>) -> Result<String, Refusal>;
}

/// Lets `service` answer clients that connect to `listener`, for as long as the process lives.
///
/// # Errors
/// If the system refuses a thread.
pub(crate) fn start(listener: UnixListener, service: impl Service) -> io::Result<()> {
    let server =
        Arc::new(Server { service, silent: Mutex::default(), n_requests: AtomicUsize::new(0) });
    let builder = thread::Builder::new().name("leap-control".to_owned());
    builder.spawn(move || accept(&listener, &server))?;
    Ok(())
}

struct Server<S> {
    service: S,
    /// The next number, and the clients that have sent no request yet, by number, the oldest first.
    silent: Mutex<(u64, Vec<(u64, UnixStream)>)>,
    n_requests: AtomicUsize,
}

impl<S> Server<S> {
    fn silent(&self) -> MutexGuard<'_, (u64, Vec<(u64, UnixStream)>)> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a connection that has sent nothing so far, and returns its number.
    fn admit(&self, stream: UnixStream) -> u64 {
        let mut silent = self.silent();
        if silent.1.len() >= SILENT_MAX {
            // The connection's thread reads the end of the stream, and ends.
            let _ = silent.1.remove(0).1.shutdown(Shutdown::Both);
        }
        let id = silent.0;
        silent.0 += 1;
        silent.1.push((id, stream));
        id
    }

    /// Forgets a client that has sent its request, or has gone.
    fn leave(&self, id: u64) {
        self.silent().1.retain(|(other, _)| *other != id);
    }
}

fn accept<S: Service>(listener: &UnixListener, server: &Arc<Server<S>>) {
    loop {
        let accepted = listener.accept().and_then(|(stream, _)| Ok((stream.try_clone()?, stream)));
        let Ok((handle, stream)) = accepted else {
            thread::sleep(RETRY);
            continue;
        };
        let (id, asked) = (server.admit(handle), Arc::clone(server));
        let serve = move || {
            // A caller that is gone needs no answer.
            let _ = serve(&asked, id, stream);
            asked.leave(id);
        };
        if thread::Builder::new().name("leap-control".to_owned()).spawn(serve).is_err() {
            server.leave(id);
        }
    }
}

fn serve<S: Service>(server: &Server<S>, id: u64, mut stream: UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(SILENCE))?;
    let refused = |code, why: &str| Err(Refusal { code, why: why.to_owned() });
    let request = request(&mut stream)?;
    server.leave(id);
    let is_one_too_many = server.n_requests.fetch_add(1, Ordering::AcqRel) >= REQUESTS_MAX;
    let answer = match request {
        _ if is_one_too_many => refused(1, "too many ask at the same time: try again"),
        Some(request) => server.service.answer(&request, &mut |word| {
            let word = word.replace('\n', " ");
            stream.write_all(format!("#{word}\n").as_bytes())
        }),
        None => refused(2, "a request is one line of up to 4 KiB"),
    };
    server.n_requests.fetch_sub(1, Ordering::AcqRel);
    let answer = match answer {
        Ok(text) if text.len() > ANSWER_MAX => refused(2, "the answer is too long"),
        answer => answer,
    };
    let (code, text) = match answer {
        Ok(text) => (0, text),
        Err(Refusal { code, why }) => (code.min(9), why),
    };
    stream.write_all(format!("{code}\n{text}").as_bytes())
}

/// The client's request; `None` if it is not one line of text, or too long.
fn request(stream: &mut UnixStream) -> io::Result<Option<String>> {
    let end = Instant::now() + SILENCE;
    let mut bytes = Vec::with_capacity(256);
    while !bytes.ends_with(b"\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 256];
        let n = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..n]);
        if n == 0 || bytes.len() > REQUEST_MAX {
            return Ok(None);
        }
    }
    bytes.pop();
    Ok(String::from_utf8(bytes).ok().filter(|line| !line.contains('\n')))
}
