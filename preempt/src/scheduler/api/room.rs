//! Room in a stream, for code that must not block.

use std::fmt;
use std::ops::Deref;

use preempt_device::host::{Call, HasGrid};

use super::handle::Handle;
use super::stream::Stream;
use crate::engine::LaunchReport;
use crate::error::Error;

/// A stream with room for one operation set aside: the next operation that is submitted through it does not block.
///
/// It is its [`Stream`] otherwise. The room is given back when it is dropped without a submission, and further
/// operations take room as through the stream itself. Clones of the stream have no room set aside.
///
/// Room comes from [`Stream::room`] and [`Stream::try_room`]. Keep it no longer than submitting takes, because others
/// wait for it meanwhile.
#[must_use = "dropping it gives the room back"]
pub struct Room {
    stream: Stream,
}

impl Deref for Room {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("stream", &self.stream).finish()
    }
}

/// The result of [`Stream::try_launch`].
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost more than to move a call")]
#[must_use = "errors are reported through the handle, and a call without room was not launched"]
pub enum TryLaunch {
    /// The call was launched.
    Launched(Handle<LaunchReport>),
    /// The stream has no room for the call, which is given back.
    NoRoom(Call<'static>),
}

impl Stream {
    /// Room for one operation, once there is some. Other futures that wait for it on this stream go first.
    ///
    /// A stream has room until 64 of its operations are outstanding. Then a submission blocks its thread, which an
    /// executor's thread must not do:
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// use preempt::{Buffer, Error, Stream};
    ///
    /// async fn request(stream: &Stream, out: &mut Buffer<u32>) -> Result<Vec<u32>, Error> {
    ///     let threads = out.len() as u32;
    ///     stream.room().await.launch(squares(&mut *out).threads(threads))?.detach();
    ///     stream.room().await.download(out)?.await
    /// }
    /// ```
    ///
    /// The future is cancel safe: when it is dropped, its turn goes to the next one.
    pub async fn room(&self) -> Room {
        Room { stream: self.with(self.credits().reserve().await) }
    }

    /// Room for one operation, if there is some now.
    ///
    /// ```
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let (stream, mut buffer) = (scheduler.stream(0), scheduler.zeroed::<f32>(1000)?);
    /// match stream.try_room() {
    ///     Some(room) => room.fill(&mut buffer, 1.5)?.detach(),
    ///     None => println!("64 operations are outstanding"),
    /// }
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn try_room(&self) -> Option<Room> {
        let credits = self.credits().try_reserve()?;
        Some(Room { stream: self.with(credits) })
    }

    /// Launches a kernel if the stream has [room](Stream::room), and never blocks.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn nothing() {}
    /// use preempt::TryLaunch;
    ///
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let stream = scheduler.stream(0);
    /// match stream.try_launch(nothing().grid(4))? {
    ///     TryLaunch::Launched(handle) => println!("{:?}", handle.wait()?),
    ///     TryLaunch::NoRoom(call) => println!("`{}` has to wait", call.kernel().name),
    /// }
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`launch`](Stream::launch).
    pub fn try_launch<G: HasGrid>(&self, call: Call<'static, G>) -> Result<TryLaunch, Error> {
        match self.try_room() {
            Some(room) => room.launch(call).map(TryLaunch::Launched),
            None => Ok(TryLaunch::NoRoom(call.with_its_grid())),
        }
    }
}
