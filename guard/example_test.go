package guard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/fencepost-go/fencepost/guard"
)

func ExampleNewMemory() {
	ctx := context.Background()
	store := guard.NewMemory()
	const resource = "tenant_123:billing-close:2026-04"

	// B took over the lease while A was paused; then A wakes up.
	for _, claim := range []guard.Claim{
		{Resource: resource, Token: 10, LeaseID: "a"},
		{Resource: resource, Token: 11, LeaseID: "b"},
		{Resource: resource, Token: 10, LeaseID: "a"},
	} {
		_, err := store.Admit(ctx, claim)
		var rejected *guard.RejectedError
		switch {
		case err == nil:
			fmt.Println(claim.Token, "admitted")
		case errors.As(err, &rejected):
			fmt.Println(claim.Token, "refused:", rejected.Reason, "- the mark is", rejected.Mark.Token)
		default:
			fmt.Println(claim.Token, "failed:", err)
		}
	}
	// Output:
	// 10 admitted
	// 11 admitted
	// 10 refused: stale - the mark is 11
}

func ExampleDecide() {
	mark := guard.Mark{Token: 11, LeaseID: "b"}
	for _, claim := range []guard.Claim{
		{Resource: "r", Token: 10, LeaseID: "a"},
		{Resource: "r", Token: 11, LeaseID: "a"},
		{Resource: "r", Token: 11, LeaseID: "b"},
		{Resource: "r", Token: 12, LeaseID: "c"},
	} {
		fmt.Println(claim.Token, claim.LeaseID, guard.Decide(guard.OncePerToken, mark, claim))
	}
	// Output:
	// 10 a fencepost: stale fencing token: token 10 for "r", the mark is 11
	// 11 a fencepost: fencing token belongs to another lease: token 11 for "r", the mark is 11 under lease "b", offered under "a"
	// 11 b fencepost: fencing token already spent: token 11 for "r", the mark is 11; the rule is OncePerToken: use SameOrNewer to write many times
	// 12 c <nil>
}

func ExampleParseToken() {
	for _, s := range []string{"11", "007", "+5"} {
		token, err := guard.ParseToken(s)
		fmt.Println(token, errors.Is(err, guard.ErrInvalid))
	}
	// Output:
	// 11 false
	// 0 true
	// 0 true
}

func ExampleTemplate() {
	closes := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	name, err := closes.Name("tenant_123", "2026-04")
	fmt.Println(name, err)
	values, err := closes.Match(name)
	fmt.Println(values, err)
	_, err = closes.Name("tenant_123", "")
	fmt.Println(err)
	fmt.Println(closes.CheckVariables("tenant", "month"))
	// Output:
	// tenant_123:billing-close:2026-04 <nil>
	// [tenant_123 2026-04] <nil>
	// fencepost: invalid template variable period "": must not be empty
	// fencepost: invalid template variable "period": of template {tenant}:billing-close:{period} is not bound to anything: name its source (TableOptions.Columns, Bindings, KeyPattern)
}

func ExampleJoinResource() {
	// A tenant whose name contains a separator cannot name another tenant's
	// resources.
	one, _ := guard.JoinResource("acme:eu", "close")
	two, _ := guard.JoinResource("acme", "eu", "close")
	fmt.Println(one)
	fmt.Println(two)
	// Output:
	// acme%3Aeu:close
	// acme:eu:close
}

func ExampleInject() {
	headers := http.Header{} // or those of your broker's client
	claim := guard.Claim{Resource: "invoice:7", Token: 11, LeaseID: "b"}
	if err := guard.Inject(claim, headers.Set); err != nil {
		fmt.Println(err)
	}
	fmt.Println(headers)
	// Output: map[Fencing-Lease:[b] Fencing-Resource:[invoice:7] Fencing-Token:[11]]
}

func ExampleExtract() {
	headers := http.Header{}
	guard.Inject(guard.Claim{Resource: "invoice:7", Token: 11, LeaseID: "b"}, headers.Set)
	// The consumer derives the resource from what it is about to write.
	claim, err := guard.Extract("invoice:7", headers.Values)
	fmt.Println(claim.Token, claim.LeaseID, err)
	_, err = guard.Extract("invoice:8", headers.Values)
	fmt.Println(err)
	// Output:
	// 11 b <nil>
	// fencepost: claim for another resource: the claim is for "invoice:7", this resource is "invoice:8"; name both by one guard.Template
}
