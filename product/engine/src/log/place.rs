//! Where a record lies in its segment: in a row at its stream's head, or in holes of it.

use coulter_format::Pba;
use coulter_format::places::Places;
use coulter_format::record::HeaderRoom;

/// The place of a record's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind its header, without a gap.
    Row,
    /// In holes behind its header; those that it can take, and once it is sealed those that it took.
    Holes(Places),
}

/// Blocks of a record that lie in a row on the device, and so are one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where the first one lies.
    pub(crate) pba: Pba,
    /// Which block of the record that is, its header being the first.
    pub(crate) block: u32,
    /// How many there are.
    pub(crate) count: u32,
}

impl Place {
    /// Blocks of payload that have room, `left` being those up to the end of the segment.
    pub(super) fn room(self, left: u32) -> u32 {
        match self {
            Place::Row => left,
            Place::Holes(places) => places.count(),
        }
    }

    /// What the header has room for, `row` being what it would have in a row.
    pub(super) fn header_room(self, row: HeaderRoom) -> HeaderRoom {
        match self {
            Place::Row => row,
            Place::Holes(_) => HeaderRoom::Scattered,
        }
    }

    /// The same with no more holes than the payload takes.
    pub(super) fn sealed(self, payload: u32) -> Place {
        match self {
            Place::Row => Place::Row,
            Place::Holes(places) => {
                assert!(places.count() >= payload, "there is a hole for every block");
                Place::Holes(places.first(payload))
            }
        }
    }

    /// What the header says of it.
    pub(super) fn scattered(self) -> Option<Places> {
        match self {
            Place::Row => None,
            Place::Holes(places) => Some(places),
        }
    }

    /// Whether what is written there uses up an empty segment.
    pub(crate) fn is_appended(self) -> bool {
        self == Place::Row
    }

    /// Where the blocks of the payload lie, one after the other.
    pub(crate) fn payload(self, header: Pba) -> PayloadPlaces {
        PayloadPlaces { first: header.plus(1), next: 0, place: self }
    }

    /// The commands that write a sealed record of so many blocks of payload, its header first.
    pub(crate) fn pieces(self, header: Pba, payload: u32) -> impl Iterator<Item = Piece> {
        let rows = self.scattered().into_iter().flat_map(Places::runs);
        let mut rows = rows.peekable();
        // The header is in a row with what lies at place 0.
        let with_header = match self {
            Place::Row => payload,
            Place::Holes(_) => rows.next_if(|row| row.place == 0).map_or(0, |row| row.count),
        };
        let first = Piece { pba: header, block: 0, count: 1 + with_header };
        let rest = rows.map(move |row| Piece {
            pba: header.plus(1 + row.place),
            block: 1 + row.payload,
            count: row.count,
        });
        core::iter::once(first).chain(rest)
    }
}

/// See [`Place::payload`].
pub(crate) struct PayloadPlaces {
    first: Pba,
    next: u32,
    place: Place,
}

impl PayloadPlaces {
    #[inline]
    pub(crate) fn next(&mut self) -> Pba {
        let place = match &self.place {
            Place::Row => self.next,
            Place::Holes(places) => places.next(self.next).expect("a place for every block"),
        };
        self.next = place + 1;
        self.first.plus(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const HEADER: Pba = Pba(100);

    /// Device address and block of the record, for each block that the pieces write.
    fn written(place: Place, payload: u32) -> Vec<(u32, u32)> {
        let pieces = place.pieces(HEADER, payload);
        let blocks = pieces.flat_map(|p| (0..p.count).map(move |i| (p.pba.0 + i, p.block + i)));
        blocks.collect()
    }

    #[test]
    fn each_block_is_written_once_and_where_the_map_will_look_for_it() {
        let mut holes = Places::default();
        [0, 1, 5, 9, 10].into_iter().for_each(|place| holes.insert(place));
        let mut behind = Places::default();
        [3, 4].into_iter().for_each(|place| behind.insert(place));
        for (place, payload) in [
            (Place::Row, 0),
            (Place::Row, 5),
            (Place::Holes(holes), 5),
            (Place::Holes(holes).sealed(3), 3),
            (Place::Holes(behind), 2),
        ] {
            let mut places = place.payload(HEADER);
            let payload = (0..payload).map(|index| (places.next().0, 1 + index));
            let expected: Vec<_> = core::iter::once((HEADER.0, 0)).chain(payload).collect();
            assert_eq!(written(place, expected.len() as u32 - 1), expected, "{place:?}");
        }
    }

    #[test]
    fn a_record_in_a_row_is_one_command() {
        let whole = Piece { pba: HEADER, block: 0, count: 8 };
        assert_eq!(Place::Row.pieces(HEADER, 7).collect::<Vec<_>>(), [whole]);
    }
}
