-- Run once, as superuser, in the service's database, before the service is deployed: claims of an endpoint that is not
-- registered are refused.

CREATE SCHEMA IF NOT EXISTS idempotency;
CREATE EXTENSION IF NOT EXISTS idempotency_enforcer SCHEMA idempotency;

-- stuck_after is above the longest time that a request can take: see PROVIDER_TIMEOUT in payments.py.
SELECT idempotency.idem_protect(
  'POST /payments', effect => 'external', retry_window => '24 hours', stuck_after => '30 seconds',
  notes => 'The effect is a card charge at the provider; reconciler.py settles what is stuck.');

CREATE TABLE payments (
  id         uuid PRIMARY KEY,  -- the provider key of the claim: the same however often the request is sent
  account    text NOT NULL,
  order_id   text NOT NULL,
  amount     integer NOT NULL CHECK (amount > 0),
  currency   text NOT NULL,
  status     text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'paid', 'declined')),
  charge     text,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE ROLE payments_service LOGIN;
CREATE ROLE payments_reconciler LOGIN;
GRANT SELECT, INSERT, UPDATE ON payments TO payments_service, payments_reconciler;
SELECT idempotency.idem_grant('payments_service', 'application'),
       idempotency.idem_grant('payments_reconciler', 'reconciler');
