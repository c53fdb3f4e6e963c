//! Names that would break a table or become markup.

use super::*;

/// Each would break a table or become markup if it were put into the document as it is.
const HOSTILE: [&str; 22] = [
    "POST /a|b",
    r"POST /a\|b",
    r"POST /a\\|b\",
    "POST /`x`",
    "``|`",
    r"\`|`\",
    "<script>alert(1)</script>",
    "</td></table><h1>x</h1>",
    "<!-- ",
    "*a* _b_ **c** ~~d~~ __e__",
    "[a](https://x.example) ![b](https://x.example)",
    "<https://x.example>",
    "&lt;b&gt; &#124; &amp;",
    "%s %1$s %",
    "$$x^2$$",
    "# not a title #",
    "1. not a list",
    "--- | ---",
    "it's; DROP TABLE x; --",
    "$idem_design_doc$",
    "POST /\u{fc}n\u{ef}/\u{65e5}\u{672c}",
    " blanks ",
];

#[test]
fn hostile_names_come_out_as_literal_text() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for names in HOSTILE.chunks(11) {
        for name in names {
            let sql = "SELECT idem_protect($1, effect => 'external', expected_writes_per_day => 1, notes => $1)";
            c.execute(sql, &[name]).unwrap();
            let sql = "SELECT idem_claim('t', $1, 'k', ''::bytea, request_target => '/x')";
            c.execute(sql, &[&format!("unregistered {name}")]).unwrap();
        }
        let doc = document(&mut c);
        assert!(doc.foreign.is_empty(), "{:?}", doc.foreign);
        assert_eq!(doc.headings[1..], HEADINGS);
        for name in names {
            let inputs = doc.row_of("Protected endpoints", name);
            assert_eq!((inputs[1], inputs[7], inputs[9]), ("external", "1", name.trim()));
            assert_eq!(doc.row_of("not registered", &format!("unregistered {name}"))[1], "open claims");
            assert_eq!(doc.row_of("Size", name)[3], "2");
            let literal: String = c.query_one("SELECT quote_literal($1::text)", &[name]).unwrap().get(0);
            let statement = format!("SELECT * FROM public.idem_reconcile(only_endpoint => {literal});");
            assert_eq!(doc.row_of("reconciliation", name)[2], statement);
        }
        // The document names a few of those that are not registered.
        c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    }
}

#[test]
fn what_cannot_be_seen_in_a_name_is_shown_as_the_log_shows_it() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let names = ["POST /x\n\n# Title\n| a |", "a\tb\r\"\\\u{1}\u{7f}", "POST /\u{202e}sdnufer", "\u{a0}", "\"quoted\""];
    for name in names {
        c.execute("SELECT idem_protect($1, notes => $1)", &[&name]).unwrap();
    }
    let doc = document(&mut c);
    assert_eq!(doc.headings[1..], HEADINGS);
    for name in names {
        assert_eq!(doc.row_of("Protected endpoints", &format!("{name:?}")).len(), 10);
    }
    assert_eq!(doc.row_of("Protected endpoints", r#""POST /x\n\n# Title\n| a |""#)[9], "POST /x # Title | a |");
    assert_eq!(doc.row_of("Protected endpoints", r#""POST /\u{202e}sdnufer""#)[9], r"POST /\u{202e}sdnufer");
}
