//! Loops pay: with clients on all of them a store does several times what it does on one.

use lab::experiments::scaling::{Charges, Clients};

/// In virtual time, so that it does not depend on the machine. With all clients on the first loop, which has then more to
/// do than it can, the same store misses both.
#[test]
fn clients_on_all_loops_are_what_makes_loops_pay() {
    let charges = Charges { warm_up_us: 100_000, measured_us: 150_000, ..Charges::from_file().unwrap() };
    let one = charges.measure(1, Clients::Spread, 1).iops;
    for (loops, least) in [(4, 3.2), (8, 6.0)] {
        let spread = charges.measure(loops, Clients::Spread, 1);
        let each = charges.volumes / usize::from(loops);
        assert_eq!(spread.connections, vec![each; usize::from(loops)]);
        assert!(spread.iops >= least * one, "{loops} loops: {:.2} times one", spread.iops / one);
        let gathered = charges.measure(loops, Clients::Gathered, 1);
        assert_eq!(gathered.connections[0], charges.volumes);
        assert!(gathered.iops < least * one, "{loops} loops: {:.2} times one", gathered.iops / one);
    }
}
