//! Answers whoever may connect, each on a thread of its own.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{ANSWER_MAX, REQUEST_MAX, Refusal, SILENCE};

/// Who ask at the same time; others wait.
const CONNECTIONS_MAX: usize = 8;
/// How long they wait.
const RETRY: Duration = Duration::from_millis(100);

/// Hears what is being done.
///
/// # Errors
/// If whoever asked is gone.
pub(crate) type Say<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

/// What becomes of requests.
pub(crate) trait Service: Send + Sync + 'static {
    /// Does what `request` asks for. `say` is to hear something every
    /// [`WORD_EVERY`](super::WORD_EVERY) until that is done.
    ///
    /// # Errors
    /// [`Refusal`].
    fn answer(&self, request: &str, say: Say<'_>) -> Result<String, Refusal>;
}

/// Lets `service` answer who connects to `listener`, for as long as the process lives.
///
/// # Errors
/// If the system refuses a thread.
pub(crate) fn start(listener: UnixListener, service: impl Service) -> io::Result<()> {
    let service = Arc::new(service);
    let n_connections = Arc::new(AtomicUsize::new(0));
    let builder = thread::Builder::new().name("leap-control".to_owned());
    builder.spawn(move || accept(&listener, &service, &n_connections))?;
    Ok(())
}

fn accept<S: Service>(listener: &UnixListener, service: &Arc<S>, n: &Arc<AtomicUsize>) {
    loop {
        let room = n.load(Ordering::Acquire) < CONNECTIONS_MAX;
        let Some(stream) = room.then(|| listener.accept().ok()).flatten() else {
            thread::sleep(RETRY);
            continue;
        };
        n.fetch_add(1, Ordering::AcqRel);
        let (service, left) = (Arc::clone(service), Arc::clone(n));
        let serve = move || {
            // Whoever is gone needs no answer.
            let _ = serve(&*service, stream.0);
            left.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().name("leap-control".to_owned()).spawn(serve).is_err() {
            n.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(service: &dyn Service, mut stream: UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(SILENCE))?;
    let refused = |why: &str| Err(Refusal { code: 2, why: why.to_owned() });
    let answer = match request(&mut stream)? {
        Some(request) => service.answer(&request, &mut |word| {
            let word = word.replace('\n', " ");
            stream.write_all(format!("#{word}\n").as_bytes())
        }),
        None => refused("a request is one line of up to 4 KiB"),
    };
    let answer = match answer {
        Ok(text) if text.len() > ANSWER_MAX => refused("the answer is too long"),
        answer => answer,
    };
    let (code, text) = match answer {
        Ok(text) => (0, text),
        Err(Refusal { code, why }) => (code.min(9), why),
    };
    stream.write_all(format!("{code}\n{text}").as_bytes())
}

/// The line that somebody sends; `None` if it is too long, or none.
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
