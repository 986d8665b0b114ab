//! The shared page between a vcoop guest and its host: words, layout, discovery.
//!
//! A vCPU and its host share a *pair* of areas. The guest writes the [`GuestArea`] and the host reads it; the host
//! writes the [`HostArea`] and the guest reads it. Every fact is one aligned little-endian 64-bit word. Every word
//! except `remote` has a single writer. So a reader sees either the old or the new fact and never a mixture, and no
//! fact needs a lock.
//!
//! * [`words`]: what a word means, and how it is encoded.
//! * [`layout`]: where a word is.
//! * [`taint`]: [`FromGuest`], the wrapper around everything that a guest wrote.
//! * [`discovery`]: how a guest finds the host, and registers its area.
//! * [`window`]: the same for guests whose VMM knows nothing of this interface.
//! * [`pvsched`]: conversion to and from the public pvsched page shape.
//! * [`conformance`]: checks any guest or host against the protocol.
//!
//! # Example
//!
//! A guest that is about to run a real-time task, and a host that boosts its vCPU for it:
//!
//! ```
//! use std::sync::atomic::Ordering::Release;
//!
//! use vcoop_abi::{BoostRequest, GuestArea, HostArea, Intent, Status, TaskIntent, Word};
//!
//! let (guest, host) = (GuestArea::default(), HostArea::default());
//!
//! // The guest stores words.
//! let intent = Intent { pending: Some(TaskIntent::fifo(80)), ..Intent::default() };
//! guest.intent.store(intent.to_word(), Release);
//! guest.request.store(BoostRequest::Boost.to_word(), Release);
//!
//! // The host reads each word once. A word is wrapped until it is decoded, and any bits decode.
//! let words = guest.read();
//! assert!(words.intent.decode::<Intent>().is_urgent());
//! assert_eq!(words.request.decode::<BoostRequest>(), BoostRequest::Boost);
//!
//! // The host stores its answer, and the guest loads it.
//! host.status.store(Status::Boosted.to_word(), Release);
//! assert_eq!(host.status(), Status::Boosted);
//! ```
//!
//! Who boosts, and when, is the subject of `vcoop-policy`. A whole VMM loop is in
//! `examples/vmm_loop.rs` of the repository.
//!
//! # Ordering
//!
//! A boost may begin at the moment when the guest decides that it needs none. One side must then end the boost. For
//! this, both sides run the same handshake in mirrored order:
//!
//! ```text
//! guest, leaving its urgent work        host, boosting
//!   store request, intent, cs, ack        store ticket, status = boosted
//!   full fence                            full fence
//!   load status                           load ack, request, intent, cs
//!   boosted: notify                       nothing urgent and ack >= ticket: restore
//! ```
//!
//! The two full fences order each side's stores before its own loads. So at least one of the two sides sees the other's
//! stores, and ends the boost. Without one of the fences both may read old values, because x86 lets a load pass an
//! earlier store. The boost then lasts until its budget is empty. [`GuestArea::fence`] is the fence for both sides.
#![no_std]

pub mod conformance;
pub mod discovery;
pub mod layout;
pub mod pvsched;
pub mod taint;
pub mod window;
pub mod words;

pub use layout::{GuestArea, GuestWords, HostArea};
pub use taint::FromGuest;
pub use words::{
    BoostRequest, Class, CsState, Header, Hints, Intent, Remote, Status, TaskIntent, Word,
};

/// Version of the words and the layout in this crate. A host and a guest that disagree on it do
/// not cooperate: the host keeps the status at [`Status::Disabled`].
pub const ABI_VERSION: u16 = 1;

/// The handshake of this crate (ticket, ack, synchronous unboost). Another way to use the same
/// words gets another number.
pub const PROTOCOL: u16 = 1;
