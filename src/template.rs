//! Which endpoints are templates: they stand for many targets, so a request names the one that it means.

/// Whether the endpoint has a part that differs from request to request: `{...}` anywhere, or a segment that begins with
/// `:`, or is `*`, `<...>` or `[...]`, as the routers of common frameworks write them.
pub fn is_template(endpoint: &str) -> bool {
    let has_braces = endpoint.find('{').is_some_and(|open| endpoint[open..].contains('}'));
    has_braces || endpoint.split([' ', '/']).any(is_parameter)
}

fn is_parameter(segment: &str) -> bool {
    let is_within = |open, close| segment.len() >= 2 && segment.starts_with(open) && segment.ends_with(close);
    segment.len() >= 2 && segment.starts_with(':') || segment == "*" || is_within('<', '>') || is_within('[', ']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_common_frameworks() {
        for endpoint in [
            "POST /orders/{id}/refund",
            "POST /orders/{id:int}",
            "POST /v1/{name=orders/*}:cancel",
            "orders.{id}.refund",
            "POST /orders/:id/refund",
            "POST /files/*",
            "POST /orders/<int:id>",
            "POST /orders/[id]",
            "POST /files/[...path]",
            ":topic",
        ] {
            assert!(is_template(endpoint), "{endpoint}");
        }
    }

    #[test]
    fn what_only_looks_alike() {
        for endpoint in [
            "POST /payments",
            "POST /v1/orders:cancel",
            "shop.Orders/Refund",
            "queue: refunds",
            "POST /a*b",
            "POST /}{",
            "POST /[x",
            "POST /a<b>c",
            "",
            "/",
        ] {
            assert!(!is_template(endpoint), "{endpoint}");
        }
    }
}
