//! Who owns which segment, who is dead, and what becomes of what the dead had: the decisions of the manager in charge.
//!
//! **Intuition.** A segment is what one engine's log says it is, so nothing that a manager decides moves anything by
//! itself: it writes down what is to be, asks engines until they have done it, and writes down that they have. Everything
//! half done is in the table. So whatever a manager wants to say at a moment *follows from the table* ([`Manager::due`]):
//! it is said when it begins to follow, repeated for as long as it does, and said by the next manager as by this one. Who
//! takes over reads the table and goes on.
//!
//! **Names.** An *engine* is one life with one log, an incarnation; a *server* is a named set of engines. The *holder* of a
//! segment is the engine whose log has the last word on it; an *assignment* gives the segment to another engine under a new
//! epoch, with the holder as *source*. A *change* is one record of the table's log; an *order* is what the manager asks for,
//! in a *message* with its term; a *report* is what engines and the store say. A segment is *adrift* if nobody will serve it
//! unless it is assigned: it has no holder, or one that released it, or one that is dead and recovered.
//!
//! **Invariants** (docs/SAFETY.md).
//! - A message leaves the machine only when every change before it is durable: [`Manager::on_logged`] is the only way out
//!   (40, 45).
//! - An assignment is taken back by the assignee's refusal, or when the recoverer of the dead assignee says that its log
//!   has no Adopt of it (40).
//! - A dead engine has one recoverer, who is replaced only when it is fenced itself; nobody else's findings count (41).
//! - Who released a segment is told to forget that only when the Adopt of another engine is durable in the table (42).
//! - Epochs are the term and a counter, and each is used once (45).
//! - An attach returns when the holders of all segments have recorded its generation, under the present epochs, with
//!   nothing of the volume on its way (47).
//! - A volume is gone when the holder of each segment has said so, under the present epoch, and was not being replaced (49).
//! - Where many servers seem gone, nobody is declared dead before another one has been asked (50, [`doubt`]).
//!
//! **Flow.** `report or wish -> changes of the table -> plans (recoverers, what is adrift, moves, volumes) -> changes ->
//! orders that follow from the table -> logged -> messages`. Of a planned move: Assign, *release*, Released, *adopt*,
//! Adopted, *forget*. Of a failover: Declare, *fence*, Fenced and Recoverer, *recover*, Recovered, Assign, *adopt*, Adopted,
//! *delete*, Delete.

mod doubt;
mod flaw;
mod manager;
mod message;
mod outbox;
mod placing;
mod plan;
mod refusals;
mod table;

pub use self::manager::{Manager, Settings};
pub use self::message::{Message, Order, Report};
pub use self::table::{Assignment, Change, Death, Segment, Table, Volume};

#[cfg(test)]
mod tests;
