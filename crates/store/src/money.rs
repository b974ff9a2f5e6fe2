//! Reservations and charges: what a call may cost is set aside before it is made, and what it cost is charged after it.

use domain::{Epoch, Event, Money, NumberedEvent, RunId, SessionId, Trigger, TurnId, Usage, UserId};

use crate::batch::{binds, statement};
use crate::caps::{DAYS, DEAREST, SUMS, Sums, trigger_sum};
use crate::head::{HEAD, Head};
use crate::row::Row;
use crate::writer::Work;
use crate::{Asker, Caps, Run, Spend, Store, StoreError, ledger, runs};

/// What one call of a model cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Charge {
    /// The model's name.
    pub model: String,
    /// The version of its price.
    pub price_version: String,
    /// Tokens.
    pub usage: Usage,
    /// What is charged.
    pub cost: Money,
    /// Counted by us, since the provider said nothing.
    pub estimated: bool,
}

/// A reservation for a call beside the turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// Names it.
    pub id: TurnId,
}

impl Store {
    /// Reserves for a call beside the turns (a summary). Settle it with [`Store::settle`].
    ///
    /// # Errors
    /// [`StoreError::OverCap`]; the epoch is stale.
    #[allow(
        clippy::too_many_arguments,
        reason = "a call is told by all of these, and by nothing else"
    )]
    pub async fn reserve(
        &self,
        asker: Asker,
        run: RunId,
        epoch: Epoch,
        model: &str,
        price_version: &str,
        amount: Money,
        caps: Caps,
    ) -> Result<Reserved, StoreError> {
        asker.must_be_system("reserve for a call")?;
        let (model, price_version) = (model.to_owned(), price_version.to_owned());
        self.write("reserve for a call", move |work| {
            let (found, mut head, _) = runs::read(work, asker, run)?;
            found.check_hold(epoch)?;
            let day = work.now.day();
            let sql =
                statement!("SELECT {SUMS} FROM runs r JOIN sessions s ON s.id = r.session_id {DAYS} WHERE r.id = $1");
            let row = work.one(sql, binds![run, day])?.ok_or_else(|| runs::not_found(run))?;
            if let Some(over) = Sums::of(&row)?.check(work, &found.trigger, amount, &caps)? {
                return Err(StoreError::OverCap(over));
            }
            let id = TurnId::new();
            Account::of(&head, &found, day).reserve(work, &mut head, id, &model, &price_version, amount);
            head.finish(work)?;
            Ok(Reserved { id })
        })
        .await
    }

    /// Charges what a reserved call cost, and frees its reservation.
    ///
    /// # Errors
    /// There is no such reservation (it was settled, or charged after a crash).
    pub async fn settle(
        &self,
        asker: Asker,
        id: TurnId,
        charges: Vec<Charge>,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("settle a call")?;
        self.write("settle a call", move |work| {
                let sql = statement!(
                    "SELECT {RESERVATION}, {HEAD} FROM reservations v JOIN sessions s ON s.id = v.session_id WHERE v.id = $1"
                );
                let row = work.one(sql, binds![id])?.ok_or_else(|| no_claim(id))?;
                let mut head = Head::of(&row)?;
                let reservation = Reservation::of(&row)?;
                reservation.settle(work, &mut head, &charges)?;
                head.finish(work)
            })
        .await
    }

    /// Charges all that was set aside for a call of which nobody knows what it cost; a turn that it was for can be begun anew, and
    /// what its model had said so far is forgotten. One that was settled stays as it is.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn charge_reservation(&self, asker: Asker, id: TurnId) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("charge a call")?;
        self.write("charge a call", move |work| {
            let sql = statement!(
                "SELECT {RESERVATION}, {HEAD} FROM reservations v JOIN sessions s ON s.id = v.session_id WHERE v.id = $1"
            );
            let Some(row) = work.one(sql, binds![id])? else {
                return Ok(Vec::new());
            };
            let mut head = Head::of(&row)?;
            Reservation::of(&row)?.charge_whole(work, &mut head)?;
            head.open.take_if(|(turn, _)| *turn == id);
            head.finish(work)
        })
        .await
    }

    /// What is spent and reserved by a session.
    ///
    /// # Errors
    /// It does not exist, for the one who asks.
    pub async fn session_spend(&self, asker: Asker, session: SessionId) -> Result<Spend, StoreError> {
        self.owner_of(asker, session).await?;
        let sql = "SELECT spent, reserved FROM sessions WHERE id = $1";
        let row = self.read_one("read what is spent", sql, binds![session]).await?;
        row.as_ref().map_or_else(|| Ok(Spend::default()), Spend::of)
    }

    /// Charges the reservations of a process that is dead: what it called may have been paid.
    pub(crate) async fn charge_what_was_left(&self) -> Result<(), StoreError> {
        const ATTEMPT: &str = "charge what a dead process had reserved";
        let runs = self
            .read(ATTEMPT, "SELECT DISTINCT run_id FROM reservations", Vec::new())
            .await?;
        for row in &runs {
            let run: RunId = row.id("run_id")?;
            self.write(ATTEMPT, move |work| {
                let (_, mut head, _) = runs::read(work, Asker::System, run)?;
                charge_left(work, &mut head, run)?;
                head.finish(work).map(|_| ())
            })
            .await?;
        }
        Ok(())
    }
}

/// Who pays for a call: the sums that it counts in.
pub(crate) struct Account {
    session: SessionId,
    owner: UserId,
    run: RunId,
    trigger: Trigger,
    day: i64,
}

impl Account {
    pub(crate) fn of(head: &Head, run: &Run, day: i64) -> Self {
        Self {
            session: head.session,
            owner: head.owner,
            run: run.id,
            trigger: run.trigger.clone(),
            day,
        }
    }

    /// Moves every sum.
    fn add(&self, work: &mut Work, head: &mut Head, spent: Money, reserved: Money) {
        head.pay(spent, reserved);
        work.batch.add(
            "UPDATE runs SET spent = spent + $2, reserved = reserved + $3 WHERE id = $1",
            binds![self.run, spent.0, reserved.0],
        );
        let (user, day) = (format!("user:{}:{}", self.owner, self.day), format!("day:{}", self.day));
        let trigger = trigger_sum(self.trigger.as_str(), self.day);
        work.batch.add(
            "INSERT INTO spend (name, spent, reserved) VALUES ($1, $4, $5), ($2, $4, $5), ($3, $4, $5) \
             ON CONFLICT (name) DO UPDATE SET spent = spend.spent + excluded.spent, \
             reserved = spend.reserved + excluded.reserved",
            binds![user, day, trigger, spent.0, reserved.0],
        );
    }

    /// Sets an amount aside under an id.
    pub(crate) fn reserve(
        &self,
        work: &mut Work,
        head: &mut Head,
        id: TurnId,
        model: &str,
        price_version: &str,
        amount: Money,
    ) {
        work.batch.add(
            "INSERT INTO reservations (id, session_id, owner, run_id, model, price_version, day, amount) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            binds![
                id,
                self.session,
                self.owner,
                self.run,
                model,
                price_version,
                self.day,
                amount.0
            ],
        );
        self.add(work, head, Money::ZERO, amount);
    }
}

/// A reservation's columns, `v` being the reservations.
pub(crate) const RESERVATION: &str = "v.id AS v_id, v.session_id AS v_session, v.owner AS v_owner, v.run_id AS v_run, \
     v.model AS v_model, v.price_version AS v_price, v.day AS v_day, v.amount AS v_amount, \
     (SELECT y.triggered_by FROM runs y WHERE y.id = v.run_id) AS v_trigger";

/// What is set aside for a call.
pub(crate) struct Reservation {
    id: TurnId,
    account: Account,
    model: String,
    price_version: String,
    amount: Money,
}

impl Reservation {
    /// From a row with [`RESERVATION`].
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id("v_id")?,
            account: Account {
                session: row.id("v_session")?,
                owner: row.id("v_owner")?,
                run: row.id("v_run")?,
                trigger: Trigger::stored(row.text("v_trigger")?),
                day: row.integer("v_day")?,
            },
            model: row.text("v_model")?,
            price_version: row.text("v_price")?,
            amount: Money(row.integer("v_amount")?),
        })
    }

    /// Charges what the calls cost and frees what was set aside.
    pub(crate) fn settle(&self, work: &mut Work, head: &mut Head, charges: &[Charge]) -> Result<(), StoreError> {
        let charges = charges.iter().map(|charge| Charge {
            cost: charge.cost.clamp(Money::ZERO, DEAREST),
            ..charge.clone()
        });
        let mut cost = Money::ZERO;
        for charge in charges {
            cost = cost.plus(charge.cost);
            ledger::insert(work, &self.account, self.id, &charge);
            head.event(
                work,
                Event::Usage {
                    run: self.account.run,
                    model: charge.model,
                    usage: charge.usage,
                    cost: charge.cost,
                    estimated: charge.estimated,
                },
            )?;
        }
        self.account.add(work, head, cost, Money::ZERO.minus(self.amount));
        work.batch
            .add("DELETE FROM reservations WHERE id = $1", binds![self.id]);
        Ok(())
    }

    /// Charges all that was set aside: nobody knows what the call cost.
    fn charge_whole(&self, work: &mut Work, head: &mut Head) -> Result<(), StoreError> {
        let charge = Charge {
            model: self.model.clone(),
            price_version: self.price_version.clone(),
            usage: Usage::default(),
            cost: self.amount,
            estimated: true,
        };
        self.settle(work, head, &[charge])?;
        work.batch.add(
            "UPDATE turns SET state = 'failed' WHERE id = $1 AND state = 'claimed'",
            binds![self.id],
        );
        Ok(())
    }
}

/// Charges every reservation that a run's holder before left.
pub(crate) fn charge_left(work: &mut Work, head: &mut Head, run: RunId) -> Result<(), StoreError> {
    let sql = statement!("SELECT {RESERVATION} FROM reservations v WHERE v.run_id = $1");
    for row in work.all(sql, binds![run])? {
        Reservation::of(&row)?.charge_whole(work, head)?;
    }
    Ok(())
}

pub(crate) fn no_claim(id: TurnId) -> StoreError {
    StoreError::NotFound {
        kind: "claim",
        id: id.to_string(),
    }
}

impl Account {
    pub(crate) const fn parts(&self) -> (UserId, SessionId, RunId, i64) {
        (self.owner, self.session, self.run, self.day)
    }
}
