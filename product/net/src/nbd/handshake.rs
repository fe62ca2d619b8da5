//! The server's side of the negotiation: fixed newstyle, from the greeting to the choice of an
//! export. It knows no socket and no clock: bytes go in, bytes and a verdict come out.
//!
//! # Invariants
//! - No input makes it panic, and it holds no input: what is not consumed stays with the caller.
//! - An option that is refused leaves the stream in step, so that the client may try another;
//!   what cannot be refused in that way ends the connection.
//! - At most [`OPTION_COUNT_MAX`] options of at most [`OPTION_SIZE_MAX`] bytes are looked at.

use super::export::Export;
use super::wire::{
    BASE_ALLOCATION, Cursor, GREETING_MAGIC, InfoRequest, MetaContextRequest, NAME_SIZE_MAX,
    OPTION_HEADER_SIZE, OPTION_MAGIC, OptionHeader, OptionReplyHeader, handshake_flag, info,
    option, option_reply as reply,
};
use crate::Malformed;
use std::sync::Arc;

/// Bytes of an option's data that are looked at; longer ones are refused.
pub const OPTION_SIZE_MAX: usize = 16 << 10;
/// Bytes of an option's data that are skipped after a refusal; longer ones end the connection.
pub const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Options before the server gives up.
pub const OPTION_COUNT_MAX: u32 = 256;
/// The number of `base:allocation` in requests for block status.
pub const BASE_ALLOCATION_ID: u32 = 1;

const CLIENT_FLAGS_SIZE: usize = 4;
const EXPORT_NAME_PADDING: usize = 124;

/// What client and server agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Index of the export.
    pub export: usize,
    /// Reads are answered by chunks.
    pub structured_replies: bool,
    /// Block status may be asked for.
    pub block_status: bool,
}

/// What to do after [`Handshake::advance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more; the bytes so far are not enough.
    Wait,
    /// Send the output, then call again with the rest of the input.
    Again,
    /// Send the output, then begin the transmission phase.
    Enter(Agreement),
    /// Send the output, then close: the client asked for it.
    Abort,
    /// Send the output, then close: the client went beyond what the protocol can mend.
    Refuse(Malformed),
}

/// The state of one negotiation.
pub struct Handshake {
    exports: Arc<[Export]>,
    state: State,
    no_zeroes: bool,
    structured_replies: bool,
    /// The export that `base:allocation` was selected for.
    context: Option<usize>,
    option_count: u32,
}

enum State {
    ClientFlags,
    Options,
    /// The rest of an option that is refused once it is here: a client that is still sending does not
    /// expect an answer.
    Skipping {
        option: u32,
        left: usize,
    },
}

impl Handshake {
    /// A negotiation about `exports`, the first of which is the default one. Appends the greeting
    /// to `output`.
    ///
    /// # Panics
    /// When there is no export.
    pub fn new(exports: Arc<[Export]>, output: &mut Vec<u8>) -> Handshake {
        assert!(!exports.is_empty(), "a server offers something");
        output.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
        output.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        output.extend_from_slice(&flags.to_be_bytes());
        Handshake {
            exports,
            state: State::ClientFlags,
            no_zeroes: false,
            structured_replies: false,
            context: None,
            option_count: 0,
        }
    }

    /// Takes one step: how many bytes of `input` were used up, and what to do next.
    pub fn advance(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, Step) {
        match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Options => self.option(input, output),
            State::Skipping { option, left } => {
                let skipped = left.min(input.len());
                let left = left - skipped;
                if left > 0 {
                    self.state = State::Skipping { option, left };
                    return (skipped, Step::Wait);
                }
                self.state = State::Options;
                Answer { option, output }.error(reply::ERR_TOO_BIG, "the option is too long");
                (skipped, Step::Again)
            }
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(flags) = Cursor(input).u32() else { return (0, Step::Wait) };
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return (CLIENT_FLAGS_SIZE, Step::Refuse(Malformed("unknown client flags")));
        }
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.state = State::Options;
        (CLIENT_FLAGS_SIZE, Step::Again)
    }

    fn option(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, Step) {
        let header = match OptionHeader::decode(input) {
            Ok(Some(header)) => header,
            Ok(None) => return (0, Step::Wait),
            Err(malformed) => return (0, Step::Refuse(malformed)),
        };
        let length = header.length as usize;
        if length > OPTION_SIZE_MAX {
            return self.oversize(header);
        }
        let Some(bytes) = input.get(OPTION_HEADER_SIZE..OPTION_HEADER_SIZE + length) else {
            return (0, Step::Wait);
        };
        if let Some(refusal) = self.count_option() {
            return (0, refusal);
        }
        let mut answer = Answer { option: header.option, output };
        (OPTION_HEADER_SIZE + length, self.answer(bytes, &mut answer))
    }

    fn oversize(&mut self, header: OptionHeader) -> (usize, Step) {
        if header.option == option::EXPORT_NAME {
            return (0, Step::Refuse(Malformed("the name of the export is too long")));
        }
        if header.length > OPTION_SKIP_MAX {
            return (0, Step::Refuse(Malformed("an option is far too long")));
        }
        if let Some(refusal) = self.count_option() {
            return (0, refusal);
        }
        self.state = State::Skipping { option: header.option, left: header.length as usize };
        (OPTION_HEADER_SIZE, Step::Again)
    }

    fn count_option(&mut self) -> Option<Step> {
        self.option_count += 1;
        (self.option_count > OPTION_COUNT_MAX)
            .then_some(Step::Refuse(Malformed("too many options")))
    }

    fn answer(&mut self, bytes: &[u8], answer: &mut Answer) -> Step {
        match answer.option {
            option::EXPORT_NAME => return self.export_name(bytes, answer),
            option::ABORT => {
                answer.acknowledge();
                return Step::Abort;
            }
            option::LIST => self.list(bytes, answer),
            option::INFO | option::GO => return self.info(bytes, answer),
            option::STRUCTURED_REPLY => {
                if bytes.is_empty() {
                    self.structured_replies = true;
                    answer.acknowledge();
                } else {
                    answer.error(reply::ERR_INVALID, "structured reply takes no data");
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(bytes, answer);
            }
            _ => answer.error(reply::ERR_UNSUP, "the option is not supported"),
        }
        Step::Again
    }

    fn export_name(&mut self, bytes: &[u8], answer: &mut Answer) -> Step {
        let name = std::str::from_utf8(bytes).ok().filter(|name| name.len() <= NAME_SIZE_MAX);
        let Some(index) = name.and_then(|name| self.find(name)) else {
            return Step::Refuse(Malformed("there is no export of the name asked for"));
        };
        let export = &self.exports[index];
        answer.output.extend_from_slice(&export.service.size().to_be_bytes());
        answer.output.extend_from_slice(&export.flags(self.structured_replies).to_be_bytes());
        if !self.no_zeroes {
            answer.output.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        Step::Enter(self.agreement(index))
    }

    fn list(&self, bytes: &[u8], answer: &mut Answer) {
        if !bytes.is_empty() {
            return answer.error(reply::ERR_INVALID, "list takes no data");
        }
        for export in self.exports.iter() {
            let name = export.name.as_bytes();
            let length = (name.len() as u32).to_be_bytes();
            answer.reply(reply::SERVER, &[&length, name, export.description.as_bytes()]);
        }
        answer.acknowledge();
    }

    fn info(&mut self, bytes: &[u8], answer: &mut Answer) -> Step {
        let Some(request) = InfoRequest::decode(bytes) else {
            answer.error(reply::ERR_INVALID, "the request for information is malformed");
            return Step::Again;
        };
        let Some(index) = self.find(request.name) else {
            answer.error(reply::ERR_UNKNOWN, "there is no export of this name");
            return Step::Again;
        };
        let export = &self.exports[index];
        let flags = export.flags(self.structured_replies);
        let size = export.service.size();
        let kind = |kind: u16| kind.to_be_bytes();
        answer
            .reply(reply::INFO, &[&kind(info::EXPORT), &size.to_be_bytes(), &flags.to_be_bytes()]);
        // Sent unasked too: a client that ignores it meets `EINVAL` where it would have known.
        let [least, preferred, greatest] = export.block_sizes().map(u32::to_be_bytes);
        answer.reply(reply::INFO, &[&kind(info::BLOCK_SIZE), &least, &preferred, &greatest]);
        if request.items().any(|item| item == info::NAME) {
            answer.reply(reply::INFO, &[&kind(info::NAME), export.name.as_bytes()]);
        }
        let described = !export.description.is_empty();
        if described && request.items().any(|item| item == info::DESCRIPTION) {
            answer.reply(reply::INFO, &[&kind(info::DESCRIPTION), export.description.as_bytes()]);
        }
        answer.acknowledge();
        if answer.option == option::GO { Step::Enter(self.agreement(index)) } else { Step::Again }
    }

    fn meta_context(&mut self, bytes: &[u8], answer: &mut Answer) {
        let selects = answer.option == option::SET_META_CONTEXT;
        if selects {
            self.context = None;
        }
        if !self.structured_replies {
            return answer.error(reply::ERR_INVALID, "structured replies must be agreed on first");
        }
        let Some(request) = MetaContextRequest::decode(bytes) else {
            return answer.error(reply::ERR_INVALID, "the query of contexts is malformed");
        };
        let Some(index) = self.find(request.name) else {
            return answer.error(reply::ERR_UNKNOWN, "there is no export of this name");
        };
        if request.queries().any(|query| !query.contains(':')) {
            return answer.error(reply::ERR_INVALID, "a context begins with a namespace");
        }
        let lists = |query: &str| query == BASE_ALLOCATION || (!selects && query == "base:");
        let all = !selects && request.query_count == 0;
        if all || request.queries().any(lists) {
            let id = if selects { BASE_ALLOCATION_ID } else { 0 };
            answer.reply(reply::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
            if selects {
                self.context = Some(index);
            }
        }
        answer.acknowledge();
    }

    fn find(&self, name: &str) -> Option<usize> {
        let named = self.exports.iter().position(|export| export.name == name);
        named.or(name.is_empty().then_some(0))
    }

    fn agreement(&self, export: usize) -> Agreement {
        Agreement {
            export,
            structured_replies: self.structured_replies,
            block_status: self.structured_replies && self.context == Some(export),
        }
    }
}

/// The replies to one option.
struct Answer<'a> {
    option: u32,
    output: &'a mut Vec<u8>,
}

impl Answer<'_> {
    fn reply(&mut self, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let header = OptionReplyHeader { option: self.option, kind, length: length as u32 };
        header.encode(self.output);
        parts.iter().for_each(|part| self.output.extend_from_slice(part));
    }

    fn acknowledge(&mut self) {
        self.reply(reply::ACK, &[]);
    }

    fn error(&mut self, kind: u32, text: &str) {
        assert!(kind & reply::ERROR_BIT != 0, "an error has the error bit");
        self.reply(kind, &[text.as_bytes()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_attach_suite::memory::{MemoryOptions, MemoryService};

    const CLIENT_FLAGS: [u8; 4] = [0, 0, 0, 3];

    fn handshake() -> (Handshake, Vec<u8>) {
        let export = |name: &str, size| {
            Export::new(name, Arc::new(MemoryService::new(MemoryOptions::new(size))))
        };
        let mut output = Vec::new();
        let exports = Arc::from([export("first", 1 << 20), export("second", 2 << 20)]);
        (Handshake::new(exports, &mut output), output)
    }

    fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        OptionHeader { option, length: data.len() as u32 }.encode(&mut bytes);
        bytes.extend_from_slice(data);
        bytes
    }

    fn go_data(name: &str) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&[0, 0]);
        data
    }

    fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        for query in queries {
            data.extend_from_slice(&(query.len() as u32).to_be_bytes());
            data.extend_from_slice(query.as_bytes());
        }
        data
    }

    /// Feeds everything; the kinds of the replies and the last step.
    fn feed(handshake: &mut Handshake, mut input: &[u8]) -> (Vec<u32>, Step) {
        let mut output = Vec::new();
        loop {
            let (used, step) = handshake.advance(input, &mut output);
            input = &input[used..];
            if step != Step::Again {
                return (kinds(&output), step);
            }
        }
    }

    fn kinds(mut output: &[u8]) -> Vec<u32> {
        let mut kinds = Vec::new();
        while let Some((head, tail)) = output.split_first_chunk() {
            let header = OptionReplyHeader::decode(head).expect("a reply is well-formed");
            kinds.push(header.kind);
            output = &tail[header.length as usize..];
        }
        kinds
    }

    fn agreed(export: usize, structured_replies: bool, block_status: bool) -> Step {
        Step::Enter(Agreement { export, structured_replies, block_status })
    }

    #[test]
    fn the_greeting_offers_fixed_newstyle() {
        let (_, output) = handshake();
        assert_eq!(output, b"NBDMAGICIHAVEOPT\x00\x03");
    }

    #[test]
    fn go_chooses_an_export_by_name_or_the_first() {
        for (name, index) in [("second", 1), ("", 0)] {
            let (mut handshake, _) = handshake();
            let mut input = CLIENT_FLAGS.to_vec();
            input.extend(option_bytes(option::GO, &go_data(name)));
            let (kinds, step) = feed(&mut handshake, &input);
            assert_eq!(kinds, [reply::INFO, reply::INFO, reply::ACK]);
            assert_eq!(step, agreed(index, false, false));
        }
    }

    #[test]
    fn refused_options_leave_the_stream_in_step() {
        let (mut handshake, _) = handshake();
        let mut input = CLIENT_FLAGS.to_vec();
        input.extend(option_bytes(0x7777, b"some data"));
        input.extend(option_bytes(option::STARTTLS, b""));
        input.extend(option_bytes(option::LIST, b"x"));
        input.extend(option_bytes(option::STRUCTURED_REPLY, b"x"));
        input.extend(option_bytes(option::INFO, b"x"));
        input.extend(option_bytes(option::GO, &go_data("absent")));
        input.extend(option_bytes(option::SET_META_CONTEXT, &context_data("", &[])));
        input.extend(option_bytes(77, &vec![0; OPTION_SIZE_MAX + 1]));
        input.extend(option_bytes(option::LIST, b""));
        let (kinds, step) = feed(&mut handshake, &input);
        assert_eq!(
            kinds,
            [
                reply::ERR_UNSUP,
                reply::ERR_UNSUP,
                reply::ERR_INVALID,
                reply::ERR_INVALID,
                reply::ERR_INVALID,
                reply::ERR_UNKNOWN,
                reply::ERR_INVALID,
                reply::ERR_TOO_BIG,
                reply::SERVER,
                reply::SERVER,
                reply::ACK,
            ]
        );
        assert_eq!(step, Step::Wait);
    }

    #[test]
    fn what_cannot_be_refused_ends_the_connection() {
        let long = option_bytes(option::EXPORT_NAME, &vec![b'a'; NAME_SIZE_MAX + 1]);
        let mut huge = option_bytes(option::LIST, b"");
        huge[12..16].copy_from_slice(&(OPTION_SKIP_MAX + 1).to_be_bytes());
        let absent = option_bytes(option::EXPORT_NAME, b"absent");
        let nonsense = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        for bytes in [long, huge, absent, nonsense] {
            let (mut handshake, _) = handshake();
            let mut input = CLIENT_FLAGS.to_vec();
            input.extend(bytes);
            let (_, step) = feed(&mut handshake, &input);
            assert!(matches!(step, Step::Refuse(_)), "{step:?}");
        }
        let (mut handshake, _) = handshake();
        let (_, step) = feed(&mut handshake, &[0xff; 4]);
        assert!(matches!(step, Step::Refuse(_)), "{step:?}");
    }

    #[test]
    fn options_are_counted() {
        let (mut handshake, _) = handshake();
        let mut input = CLIENT_FLAGS.to_vec();
        for _ in 0..=OPTION_COUNT_MAX {
            input.extend(option_bytes(option::LIST, b""));
        }
        let (_, step) = feed(&mut handshake, &input);
        assert_eq!(step, Step::Refuse(Malformed("too many options")));
    }

    #[test]
    fn abort_is_acknowledged() {
        let (mut handshake, _) = handshake();
        let mut input = CLIENT_FLAGS.to_vec();
        input.extend(option_bytes(option::ABORT, b""));
        assert_eq!(feed(&mut handshake, &input), (vec![reply::ACK], Step::Abort));
    }

    #[test]
    fn export_name_answers_with_and_without_padding() {
        for (flags, size) in [(1, 134), (3, 10)] {
            let (mut handshake, _) = handshake();
            let mut input = vec![0, 0, 0, flags];
            input.extend(option_bytes(option::EXPORT_NAME, b"second"));
            let mut output = Vec::new();
            let (used, _) = handshake.advance(&input, &mut output);
            let (_, step) = handshake.advance(&input[used..], &mut output);
            assert_eq!(step, agreed(1, false, false));
            assert_eq!(output.len(), size);
            assert_eq!(output[..8], (2u64 << 20).to_be_bytes());
        }
    }

    #[test]
    fn a_context_counts_for_the_export_it_was_selected_for() {
        let structured = option_bytes(option::STRUCTURED_REPLY, b"");
        let set = |name, queries: &[&str]| {
            option_bytes(option::SET_META_CONTEXT, &context_data(name, queries))
        };
        let go = |name| option_bytes(option::GO, &go_data(name));
        let cases = [
            ([set("", &[BASE_ALLOCATION]), go("first")].concat(), true),
            ([set("second", &[BASE_ALLOCATION]), go("first")].concat(), false),
            ([set("", &["base:"]), go("")].concat(), false),
            ([set("", &[BASE_ALLOCATION]), set("", &[]), go("")].concat(), false),
            ([set("", &[BASE_ALLOCATION]), set("", &["bad"]), go("")].concat(), false),
        ];
        for (bytes, selected) in cases {
            let (mut handshake, _) = handshake();
            let input = [&CLIENT_FLAGS[..], &structured, &bytes].concat();
            let (_, step) = feed(&mut handshake, &input);
            assert_eq!(step, agreed(0, true, selected));
        }
    }

    #[test]
    fn contexts_are_listed_by_none_by_namespace_and_by_name() {
        let cases: [(&[&str], bool); 4] =
            [(&[], true), (&["base:"], true), (&[BASE_ALLOCATION], true), (&["qemu:"], false)];
        for (queries, found) in cases {
            let (mut handshake, _) = handshake();
            let mut input = CLIENT_FLAGS.to_vec();
            input.extend(option_bytes(option::STRUCTURED_REPLY, b""));
            input.extend(option_bytes(option::LIST_META_CONTEXT, &context_data("", queries)));
            let (kinds, _) = feed(&mut handshake, &input);
            assert_eq!(kinds.contains(&reply::META_CONTEXT), found, "{queries:?}");
        }
    }

    #[test]
    fn every_prefix_of_a_negotiation_waits() {
        let mut whole = CLIENT_FLAGS.to_vec();
        whole.extend(option_bytes(option::STRUCTURED_REPLY, b""));
        whole.extend(option_bytes(option::GO, &go_data("first")));
        for cut in 0..whole.len() {
            let (mut handshake, _) = handshake();
            let (_, step) = feed(&mut handshake, &whole[..cut]);
            assert_eq!(step, Step::Wait, "cut at {cut}");
        }
    }
}
