package link

import (
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
)

func TestList(t *testing.T) {
	links, err := List("/")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Name == "lo" {
			if l.Index != 1 || l.MTU == 0 || l.Driver != "" || l.PCI != "" {
				t.Errorf("%+v", l)
			}
			return
		}
	}
	t.Errorf("no loopback link in %+v", links)
}

func TestSetErrors(t *testing.T) {
	for code, p := range map[string]agentapi.SetLinkParams{
		agentapi.CodeNotFound: {Name: "nothing0", MTU: 1500},
		agentapi.CodeInvalid:  {Name: "lo", Combined: -1},
		agentapi.CodeRefused:  {Name: "lo", Combined: 3}, // the loopback link has no channels
	} {
		if _, err := Set("/", p); err == nil || fault.Reply(err).Code != code {
			t.Errorf("%+v: %v, want code %s", p, err, code)
		}
	}
}

func TestCombinedOfALinkWithoutChannels(t *testing.T) {
	if now, most, err := Combined(1); now != 0 || most != 0 || err != nil {
		t.Errorf("the loopback link has %d of %d channels, %v", now, most, err)
	}
}
