//! What a pool and its worker say to each other, over a pair of sockets that no other process has: whole messages of a few bytes,
//! whose contents are in memory that goes along as a descriptor, as do buffers of the device.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// What each message begins with: the protocol and its version.
const MAGIC: [u8; 8] = *b"preempt\x02";

/// Bytes, at most, of the name in a message.
pub const LONGEST_NAME: usize = 256;

/// Buffers, at most, that a message has; Linux would take 252. Each has its place in the space for a message, used or not.
pub const MOST_BUFFERS: usize = 16;

/// Bytes of a message without its name and what it says of buffers: the magic, the kind, a number, the bytes in memory, and how
/// many buffers there are.
const HEAD: usize = MAGIC.len() + 1 + 8 + 8 + 1;

/// Bytes that a message says of a buffer: how many it has, and whether a GPU has them.
const OF_BUFFER: usize = 8 + 1;

/// Descriptors, at most: the contents', and the buffers'.
const MOST_DESCRIPTORS: usize = 1 + MOST_BUFFERS;

/// The kinds of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// To a worker: the number of its device. Back: it is one.
    Hello,
    /// From a worker: the device memory that it has, in bytes.
    Ready,
    /// To a worker: a function by name, and its input. The answer has the number of the call.
    Call,
    /// From a worker: what the function gave.
    Output,
    /// From a worker: why it gave nothing, as text.
    Failed,
    /// From a worker: it has no such function; the names of those that it has, as text.
    Unknown,
}

const KINDS: [Kind; 6] =
    [Kind::Hello, Kind::Ready, Kind::Call, Kind::Output, Kind::Failed, Kind::Unknown];

#[derive(Debug)]
pub struct Message {
    pub kind: Kind,
    pub number: u64,
    pub name: String,
    pub contents: Vec<u8>,
    /// [`MOST_BUFFERS`] at most.
    pub buffers: Vec<Shared>,
}

/// Memory of a device that both sides have.
#[derive(Clone, Debug)]
pub struct Shared {
    pub descriptor: Arc<OwnedFd>,
    pub bytes: u64,
    /// Whether it is a GPU's.
    pub is_gpu: bool,
}

impl Message {
    pub fn new(kind: Kind, number: u64) -> Message {
        Message { kind, number, name: String::new(), contents: Vec::new(), buffers: Vec::new() }
    }
}

/// Why there is no message.
#[derive(Debug)]
pub enum Silence {
    /// The other side has ended.
    Ended,
    /// The time is over.
    Late,
    /// What came is no message.
    Nonsense(&'static str),
    System(io::Error),
}

impl From<Errno> for Silence {
    fn from(error: Errno) -> Silence {
        Silence::System(error.into())
    }
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Silence {
        Silence::System(error)
    }
}

pub fn send(socket: BorrowedFd<'_>, message: &Message) -> Result<(), Silence> {
    let mut head = Vec::with_capacity(HEAD + message.name.len());
    head.extend(MAGIC);
    head.push(KINDS.iter().position(|kind| *kind == message.kind).unwrap_or_default() as u8);
    head.extend(message.number.to_le_bytes());
    head.extend((message.contents.len() as u64).to_le_bytes());
    head.push(message.buffers.len() as u8);
    for Shared { bytes, is_gpu, .. } in &message.buffers {
        head.extend(bytes.to_le_bytes());
        head.push(u8::from(*is_gpu));
    }
    head.extend(message.name.as_bytes());
    let memory = match &*message.contents {
        [] => None,
        contents => {
            let memory = File::from(memfd_create("preempt", MemfdFlags::CLOEXEC)?);
            memory.write_all_at(contents, 0)?;
            Some(memory)
        }
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let buffers = message.buffers.iter().map(|buffer| buffer.descriptor.as_fd());
    let descriptors = memory.iter().map(AsFd::as_fd).chain(buffers).collect::<Vec<_>>();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&head)], &mut ancillary, SendFlags::NOSIGNAL);
    match sent {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(Silence::Ended),
        Err(error) => Err(error.into()),
    }
}

/// Waits for a message, at most until `deadline`.
pub fn receive(socket: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<Message, Silence> {
    await_readable(socket, deadline)?;
    let mut bytes = [0; HEAD + MOST_BUFFERS * OF_BUFFER + LONGEST_NAME];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    );
    let len = match received {
        Ok(received) => received.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    if len == 0 {
        return Err(Silence::Ended);
    }
    read(&bytes[..len], descriptors)
}

fn await_readable(socket: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<(), Silence> {
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        // A day is as good as for ever, and can be told to the system.
        let left = left.map(|left| left.min(Duration::from_secs(24 * 3600)));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Err(Silence::Late),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn read(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Message, Silence> {
    let nonsense = Silence::Nonsense;
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(nonsense("a message that is too short"));
    };
    if *magic != MAGIC {
        return Err(nonsense("another protocol, or another version of it"));
    }
    let Some((&[kind], rest)) = rest.split_first_chunk::<1>() else {
        return Err(nonsense("a message without a kind"));
    };
    let Some((number, rest)) = rest.split_first_chunk::<8>() else {
        return Err(nonsense("a message without a number"));
    };
    let Some((len, rest)) = rest.split_first_chunk::<8>() else {
        return Err(nonsense("a message without a length"));
    };
    let Some((&[buffers], rest)) = rest.split_first_chunk::<1>() else {
        return Err(nonsense("a message that is too short for its buffers"));
    };
    let Some((of_buffers, name)) = rest.split_at_checked(usize::from(buffers) * OF_BUFFER) else {
        return Err(nonsense("a message that is too short for its buffers"));
    };
    let kind = *KINDS.get(usize::from(kind)).ok_or(nonsense("a message of no kind"))?;
    let name = std::str::from_utf8(name).map_err(|_| nonsense("a name that is no text"))?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| nonsense("no length"))?;
    let mut contents = Vec::new();
    let mut descriptors = descriptors.into_iter();
    if len > 0 {
        let memory = descriptors.next().ok_or(nonsense("a message without its contents"))?;
        let memory = File::from(memory);
        if memory.metadata()?.len() != len as u64 {
            return Err(nonsense("contents of another length"));
        }
        if contents.try_reserve_exact(len).is_err() {
            return Err(nonsense("more contents than there is memory for"));
        }
        contents.resize(len, 0);
        memory.read_exact_at(&mut contents, 0)?;
    }
    let (of_buffers, _) = of_buffers.as_chunks::<OF_BUFFER>();
    let buffers = of_buffers.iter().map(|&[ref bytes @ .., is_gpu]| {
        let descriptor = descriptors.next().ok_or(nonsense("a message without its buffers"))?;
        let (descriptor, bytes) = (Arc::new(descriptor), u64::from_le_bytes(*bytes));
        Ok(Shared { descriptor, bytes, is_gpu: is_gpu != 0 })
    });
    let buffers = buffers.collect::<Result<_, Silence>>()?;
    let (number, name) = (u64::from_le_bytes(*number), name.to_owned());
    Ok(Message { kind, number, name, contents, buffers })
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("sockets")
    }

    /// Memory of this length.
    fn memory(len: usize) -> File {
        let memory = File::from(memfd_create("preempt", MemfdFlags::CLOEXEC).expect("memory"));
        memory.write_all_at(&vec![1; len], 0).expect("written");
        memory
    }

    #[test]
    fn messages_arrive_whole() {
        let (here, there) = pair();
        for (kind, len) in KINDS.into_iter().zip([0, 1, 100, 5_000_000, 0, 7]) {
            for count in [0, 1, MOST_BUFFERS] {
                let contents = (0..len).map(|byte| byte as u8).collect();
                let buffers = (0..count).map(|number| Shared {
                    descriptor: Arc::new(memory(number).into()),
                    bytes: 3 + number as u64,
                    is_gpu: number % 2 == 1,
                });
                let (name, buffers) = ("n".repeat(LONGEST_NAME), buffers.collect());
                let sent = Message { kind, number: 7 << 40, name, contents, buffers };
                send(here.as_fd(), &sent).expect("sent");
                let found = receive(there.as_fd(), None).expect("received");
                assert_eq!((found.kind, found.number, found.name), (kind, 7 << 40, sent.name));
                assert!(found.contents == sent.contents && found.buffers.len() == count);
                for (number, buffer) in found.buffers.iter().enumerate() {
                    let size = rustix::fs::fstat(&buffer.descriptor).expect("a file").st_size;
                    assert_eq!((size, buffer.bytes), (number as i64, 3 + number as u64));
                    assert_eq!(buffer.is_gpu, number % 2 == 1);
                }
            }
        }
        let now = Some(Instant::now());
        assert!(matches!(receive(there.as_fd(), now), Err(Silence::Late)));
        drop(here);
        assert!(matches!(receive(there.as_fd(), None), Err(Silence::Ended)));
        assert!(matches!(send(there.as_fd(), &Message::new(Kind::Hello, 0)), Err(Silence::Ended)));
    }

    #[test]
    fn nonsense_is_told_from_messages() {
        let head = |kind: u8, len: u64| {
            let mut bytes = MAGIC.to_vec();
            bytes.push(kind);
            bytes.extend(1u64.to_le_bytes());
            bytes.extend(len.to_le_bytes());
            bytes.push(0);
            bytes
        };
        // With this many buffers, of which nothing is said.
        let with = |buffers: u8| {
            let mut bytes = head(2, 4);
            bytes[HEAD - 1] = buffers;
            bytes
        };
        let lent = |lens: &[usize]| -> Vec<OwnedFd> {
            lens.iter().map(|&len| memory(len).into()).collect()
        };
        assert!(read(&head(0, 0), lent(&[])).is_ok());
        assert!(read(&head(3, 4), lent(&[4])).is_ok());
        let one = [with(1), vec![0; OF_BUFFER]].concat();
        assert!(read(&one, lent(&[4, 9])).is_ok());
        let short = (0..HEAD).map(|len| (head(0, 0)[..len].to_vec(), lent(&[])));
        let wrong = [
            (b"hello, worker, what is this".to_vec(), lent(&[])),
            (head(6, 0), lent(&[])),
            (head(3, 4), lent(&[])),
            (head(3, 4), lent(&[3])),
            (head(3, u64::MAX), lent(&[3])),
            ([head(0, 0), vec![0xff]].concat(), lent(&[])),
            (one, lent(&[4])),
            (with(1), lent(&[4, 9])),
            ([with(2), vec![0; OF_BUFFER]].concat(), lent(&[4, 9, 9])),
            (with(255), lent(&[4])),
        ];
        for (bytes, descriptors) in short.chain(wrong) {
            let found = read(&bytes, descriptors);
            assert!(matches!(found, Err(Silence::Nonsense(_))), "{bytes:?}: {found:?}");
        }
    }
}
