//! A Markdown document as its readers see it: what is text, what is markup, and what stands in which cell.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct Document {
    pub headings: Vec<String>,
    pub tables: Vec<Table>,
    /// What is outside of tables and headings.
    pub text: String,
    /// Kinds of markup that a table cell has, other than code and emphasis.
    pub foreign: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub struct Table {
    pub under: String,
    pub rows: Vec<Vec<String>>,
}

impl Document {
    /// Reads it as GitHub does.
    pub fn read(markdown: &str) -> Document {
        let mut document = Document::default();
        let (mut in_table, mut in_heading) = (false, false);
        for event in Parser::new_ext(markdown, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
            match event {
                Event::Start(Tag::Heading { .. }) => {
                    in_heading = true;
                    document.headings.push(String::new());
                }
                Event::End(TagEnd::Heading(_)) => in_heading = false,
                Event::Start(Tag::Table(_)) => {
                    in_table = true;
                    let under = document.headings.last().cloned().unwrap_or_default();
                    document.tables.push(Table { under, rows: vec![] });
                }
                Event::End(TagEnd::Table) => in_table = false,
                Event::Start(Tag::TableHead | Tag::TableRow) => document.table().rows.push(vec![]),
                Event::Start(Tag::TableCell) => document.row().push(String::new()),
                Event::Text(text) | Event::Code(text) => match (in_table, in_heading) {
                    (true, _) => document.row().last_mut().expect("a cell").push_str(&text),
                    (_, true) => document.headings.last_mut().expect("a heading").push_str(&text),
                    _ => document.text.push_str(&text),
                },
                Event::SoftBreak => document.text.push(' '),
                Event::End(TagEnd::Paragraph | TagEnd::Item) => document.text.push('\n'),
                Event::Start(Tag::Paragraph | Tag::List(_) | Tag::Item | Tag::Emphasis | Tag::Strong)
                | Event::End(_) => {}
                other => {
                    document.foreign.insert(format!("{other:?}"));
                }
            }
        }
        document
    }

    fn table(&mut self) -> &mut Table {
        self.tables.last_mut().expect("a table")
    }

    fn row(&mut self) -> &mut Vec<String> {
        self.table().rows.last_mut().expect("a row")
    }

    /// The rows under a heading that has this word in it, without their head.
    pub fn rows(&self, heading: &str) -> Vec<Vec<&str>> {
        let table = self.tables.iter().find(|t| t.under.contains(heading));
        let rows = table.map(|t| &t.rows[1..]).unwrap_or_default();
        rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect()
    }

    /// The row under a heading whose first cell is this.
    pub fn row_of(&self, heading: &str, first: &str) -> Vec<&str> {
        let rows = self.rows(heading);
        rows.iter().find(|r| r[0] == first).unwrap_or_else(|| panic!("no {first:?} in {rows:#?}")).clone()
    }
}
