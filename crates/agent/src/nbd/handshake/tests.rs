use base::Prng;

use super::*;

/// A client's option on the wire.
fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u64(OPTION_MAGIC);
    out.put_u32(option);
    out.put_u32(data.len() as u32);
    out.put_slice(data);
    out
}

fn prefixed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// Feeds `bytes` in pieces of random sizes, as a network may cut them.
fn parse_all(bytes: &[u8], prng: &mut Prng) -> Result<Vec<ClientOption>, Violation> {
    let (mut parser, mut pending, mut options) = (HandshakeParser::new(), Vec::new(), Vec::new());
    let mut rest = bytes;
    loop {
        let (taken, option) = parser.parse(&pending)?;
        pending.drain(..taken);
        options.extend(option.clone());
        if taken > 0 || option.is_some() {
            continue;
        }
        if rest.is_empty() {
            return Ok(options);
        }
        let (piece, others) = rest.split_at((prng.between(1, 40) as usize).min(rest.len()));
        pending.extend_from_slice(piece);
        rest = others;
    }
}

fn parse_one(option: u32, data: &[u8]) -> Result<ClientOption, Violation> {
    let bytes = [&3u32.to_be_bytes()[..], &option_bytes(option, data)].concat();
    let mut options = parse_all(&bytes, &mut Prng::new(1))?;
    assert_eq!(options.len(), 1, "{options:?}");
    Ok(options.remove(0))
}

#[test]
fn options_arrive_whole_however_the_network_cuts_them() {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option_bytes(option::STRUCTURED_REPLY, b""));
    bytes.extend(option_bytes(99, &vec![7; 100_000]));
    bytes.extend(option_bytes(option::LIST, b""));
    let set = [prefixed("disk"), 2u32.to_be_bytes().to_vec(), prefixed(CONTEXT_NAME), prefixed("x-y:z")].concat();
    bytes.extend(option_bytes(option::SET_META_CONTEXT, &set));
    let go = [&prefixed("disk")[..], &[0, 2, 0, 3, 0, 1]].concat();
    bytes.extend(option_bytes(option::GO, &go));
    for seed in 0..50 {
        let options = parse_all(&bytes, &mut Prng::new(seed)).unwrap();
        let queries = vec![CONTEXT_NAME.to_owned(), "x-y:z".to_owned()];
        assert_eq!(
            options,
            [
                ClientOption::StructuredReply,
                ClientOption::Refused { option: 99, reply: option_reply::ERR_UNSUP, reason: "the option is not known" },
                ClientOption::List,
                ClientOption::MetaContext { set: true, export: "disk".into(), queries },
                ClientOption::Info { go: true, export: "disk".into(), wanted: vec![3, 1] },
            ],
            "seed {seed}"
        );
    }
}

#[test]
fn what_is_malformed_is_answered_with_an_error() {
    let long = "n".repeat(STRING_MAX + 1);
    let table: &[(u32, Vec<u8>, u32)] = &[
        (option::LIST, vec![0], option_reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, vec![1, 2], option_reply::ERR_INVALID),
        (option::STARTTLS, vec![1], option_reply::ERR_INVALID),
        (option::EXTENDED_HEADERS, vec![], option_reply::ERR_UNSUP),
        (4, vec![], option_reply::ERR_UNSUP),
        (0, vec![], option_reply::ERR_UNSUP),
        (u32::MAX, vec![9; 300], option_reply::ERR_UNSUP),
        (option::GO, vec![], option_reply::ERR_INVALID),
        (option::GO, vec![0, 0, 0, 9, b'x', 0, 0], option_reply::ERR_INVALID),
        (option::GO, vec![0xff, 0xff, 0xff, 0xff, 0, 0], option_reply::ERR_INVALID),
        (option::INFO, [&prefixed("d")[..], &[0, 1]].concat(), option_reply::ERR_INVALID),
        (option::INFO, [&prefixed("d")[..], &[0, 0, 0]].concat(), option_reply::ERR_INVALID),
        (option::INFO, [&prefixed("a\0b")[..], &[0, 0]].concat(), option_reply::ERR_INVALID),
        (option::INFO, [&[0, 0, 0, 2, 0xc3, 0x28][..], &[0, 0]].concat(), option_reply::ERR_INVALID),
        (option::INFO, [&prefixed(&long)[..], &[0, 0]].concat(), option_reply::ERR_INVALID),
        (option::SET_META_CONTEXT, prefixed("d"), option_reply::ERR_INVALID),
        (option::SET_META_CONTEXT, [&prefixed("d")[..], &[0xff; 4]].concat(), option_reply::ERR_INVALID),
        (option::LIST_META_CONTEXT, [&prefixed("d")[..], &[0, 0, 0, 0, 1]].concat(), option_reply::ERR_INVALID),
        (option::LIST_META_CONTEXT, vec![b'x'; OPTION_DATA_MAX + 1], option_reply::ERR_TOO_BIG),
    ];
    for (option, data, reply) in table {
        let parsed = parse_one(*option, data).unwrap();
        assert!(
            matches!(&parsed, ClientOption::Refused { option: o, reply: r, .. } if (o, r) == (option, reply)),
            "option {option} with {} bytes: {parsed:?}",
            data.len()
        );
    }
}

#[test]
fn what_leaves_no_common_ground_is_a_violation() {
    let mut prng = Prng::new(2);
    assert!(parse_all(&4u32.to_be_bytes(), &mut prng).is_err(), "unknown client flags");
    assert!(parse_all(b"\0\0\0\x03GET / HTTP/1.1\r\n", &mut prng).is_err(), "another protocol");
    let mut huge = 3u32.to_be_bytes().to_vec();
    huge.extend(OPTION_MAGIC.to_be_bytes());
    huge.extend(option::GO.to_be_bytes());
    huge.extend((OPTION_SKIP_MAX + 1).to_be_bytes());
    assert!(parse_all(&huge, &mut prng).is_err(), "an option without end");
    assert!(parse_one(option::EXPORT_NAME, &[b'n'; 5000]).is_err());
    assert!(parse_one(option::EXPORT_NAME, &[b'n'; 50_000]).is_err());
    assert!(parse_one(option::EXPORT_NAME, b"a\0").is_err());
    let mut many = 3u32.to_be_bytes().to_vec();
    (0..=OPTIONS_MAX).for_each(|_| many.extend(option_bytes(option::LIST, b"")));
    assert!(parse_all(&many, &mut prng).is_err(), "options without end");
}

#[test]
fn random_bytes_never_panic_and_never_stall() {
    for seed in 0..2_000 {
        let mut prng = Prng::new(seed);
        let mut bytes = vec![0; prng.below(400) as usize];
        prng.fill(&mut bytes);
        // A valid beginning, so that the noise reaches the inner parts.
        let known = option_bytes(prng.below(12) as u32, &bytes);
        let all = [&3u32.to_be_bytes()[..], &known, &bytes].concat();
        let _ = parse_all(&all, &mut prng);
        let _ = parse_all(&bytes, &mut prng);
    }
}

#[test]
fn wildcards_select_in_lists_only() {
    let query = |text: &str| vec![text.to_owned()];
    assert!(selects_allocation(false, &[]) && !selects_allocation(true, &[]));
    assert!(selects_allocation(false, &query("base:")) && !selects_allocation(true, &query("base:")));
    assert!(selects_allocation(false, &query(CONTEXT_NAME)) && selects_allocation(true, &query(CONTEXT_NAME)));
    for other in ["base:alloc", "qemu:dirty-bitmap:b", "base", ""] {
        assert!(!selects_allocation(false, &query(other)) && !selects_allocation(true, &query(other)), "{other}");
    }
}

#[test]
fn golden_bytes_of_the_handshake() {
    assert_eq!(&greeting()[..], b"NBDMAGICIHAVEOPT\0\x03");
    let mut out = Vec::new();
    put_reply(&mut out, option::GO, option_reply::ACK, b"");
    assert_eq!(out, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0");
    out.clear();
    put_info_export(&mut out, option::GO, 1 << 30, 0x0dcd);
    assert_eq!(out[12..], *b"\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\x40\0\0\0\x0d\xcd");
    out.clear();
    put_info_block_size(&mut out, option::INFO);
    assert_eq!(out[16..], *b"\0\0\0\x0e\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
    out.clear();
    put_server(&mut out, "disk");
    assert_eq!(out[12..], *b"\0\0\0\x02\0\0\0\x08\0\0\0\x04disk");
    out.clear();
    put_meta_context(&mut out, true);
    assert_eq!(out[12..], *b"\0\0\0\x04\0\0\0\x13\0\0\0\x01base:allocation");
    out.clear();
    put_export(&mut out, 512, 1, true);
    assert_eq!(out, b"\0\0\0\0\0\0\x02\0\0\x01");
    put_export(&mut out, 512, 1, false);
    assert_eq!(out.len(), 10 + 134);
}
