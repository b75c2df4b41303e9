//! Text that leaves a generation: whole characters, and nothing that may still turn out to be a stop string.

use bloomery_tokenizer::StreamDecoder;

/// Joins the bytes of tokens to text and watches for stop strings.
#[derive(Debug)]
pub(crate) struct TextOut {
    decoder: StreamDecoder,
    stops: Vec<String>,
    /// Text that could be the beginning of a stop string.
    held: String,
}

/// What one more token made certain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Emitted {
    pub text: String,
    /// The stop string that ended the text.
    pub stopped_by: Option<String>,
}

impl TextOut {
    pub fn new(special: bool, stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { decoder: StreamDecoder::new(special), stops, held: String::new() }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Emitted {
        let text = self.decoder.push_bytes(bytes);
        if self.stops.is_empty() {
            return Emitted { text, stopped_by: None };
        }
        self.held.push_str(&text);
        self.scan()
    }

    /// What was held back, when the generation ends for another reason.
    pub fn finish(&mut self) -> Emitted {
        let tail = self.decoder.finish();
        self.held.push_str(&tail);
        let mut emitted = self.scan();
        if emitted.stopped_by.is_none() {
            emitted.text.push_str(&std::mem::take(&mut self.held));
        }
        emitted
    }

    fn scan(&mut self) -> Emitted {
        // The stop string that is complete first ends the text, the longest of those that end at one place: so it does
        // not matter how the text was cut into tokens.
        let hits = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = hits.min_by_key(|(at, stop)| (at + stop.len(), *at)) {
            let stopped_by = Some(stop.clone());
            self.held.truncate(at);
            return Emitted { text: std::mem::take(&mut self.held), stopped_by };
        }
        let certain =
            self.held.len() - self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(certain);
        Emitted { text: std::mem::replace(&mut self.held, rest), stopped_by: None }
    }
}

/// Length of the longest end of `text` that `stop` begins with.
fn begun(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, _)| at)
        .rev()
        .find(|&length| stop.get(..length).is_some_and(|beginning| text.ends_with(beginning)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn out(stops: &[&str]) -> TextOut {
        TextOut::new(false, &stops.iter().map(|stop| (*stop).to_owned()).collect::<Vec<_>>())
    }

    fn texts(out: &mut TextOut, pieces: &[&str]) -> Vec<String> {
        pieces.iter().map(|piece| out.push(piece.as_bytes()).text).collect()
    }

    #[test]
    fn a_begun_stop_string_waits() {
        let mut out = out(&["<end>"]);
        assert_eq!(texts(&mut out, &["ab", "c<", "e", "x<"]), ["ab", "c", "", "<ex"]);
        assert_eq!(out.push(b"end").text, "");
        assert_eq!(out.push(b">tail"), Emitted { text: String::new(), stopped_by: Some("<end>".into()) });
    }

    #[test]
    fn the_earliest_of_several_wins() {
        let mut out = out(&["later", "or"]);
        assert_eq!(
            out.push(b"sooner or later"),
            Emitted { text: "sooner ".into(), stopped_by: Some("or".into()) }
        );
    }

    #[test]
    fn what_was_held_comes_at_the_end() {
        let mut out = out(&["stop!"]);
        assert_eq!(out.push(b"please sto").text, "please ");
        assert_eq!(out.finish(), Emitted { text: "sto".into(), stopped_by: None });
        let mut out = super::tests::out(&["x\u{fffd}"]);
        out.push(b"x");
        out.push(&[0xe2, 0x82]);
        assert_eq!(out.finish().stopped_by.as_deref(), Some("x\u{fffd}"), "the end of a text is text too");
    }

    #[test]
    fn characters_are_whole_and_empty_stops_mean_nothing() {
        let mut out = out(&["", "€!"]);
        let euro = "€".as_bytes();
        assert_eq!(out.push(&euro[..1]).text, "");
        assert_eq!(out.push(&euro[1..]).text, "", "could begin the stop string");
        assert_eq!(out.push(b"?").text, "€?");
    }

    proptest! {
        #[test]
        fn the_cut_of_the_pieces_changes_nothing(text in "[ab€<]{0,40}", stops in prop::collection::vec("[ab€<]{0,4}", 0..4), cuts in prop::collection::vec(0usize..120, 0..12)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut pieces = TextOut::new(false, &stops);
            let mut joined = String::new();
            let mut stopped_by = None;
            for pair in cuts.windows(2) {
                let emitted = pieces.push(&bytes[pair[0]..pair[1]]);
                joined.push_str(&emitted.text);
                stopped_by = emitted.stopped_by;
                if stopped_by.is_some() { break; }
            }
            if stopped_by.is_none() { joined.push_str(&pieces.finish().text); }
            let real: Vec<&String> = stops.iter().filter(|stop| !stop.is_empty()).collect();
            let first = real.iter().filter_map(|stop| Some((text.find(stop.as_str())?, *stop))).min_by_key(|(at, stop)| (at + stop.len(), *at));
            prop_assert_eq!(stopped_by.as_ref(), first.map(|(_, stop)| stop));
            prop_assert_eq!(joined.as_str(), first.map_or(text.as_str(), |(at, _)| &text[..at]));
        }
    }
}
